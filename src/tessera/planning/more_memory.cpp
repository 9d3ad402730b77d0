#include "tessera/planning/more_memory.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/units.h"
#include "tessera/plan/search/planner.h"

namespace tessera::planning {

namespace {

constexpr double kCounts = 0.005;  // a smaller share of a step counts as nothing
constexpr int64_t kGiB = int64_t{1} << 30;

/// 8 GiB (or `most`) of a large budget, a quarter of a small one.
int64_t step_of(int64_t budget, int64_t most) { return budget >= 2 * most ? most : std::max<int64_t>(1, budget / 4); }

std::string change_text(double seconds, double before) {
  const auto percent = static_cast<int>(std::lround(100 * (1 - seconds / before)));
  return percent == 0 ? "no faster" : "-" + std::to_string(percent) + " %, " + format_seconds(seconds);
}

}  // namespace

std::string more_memory(const PlanRequest& request, const Planned& planned) {
  const plan::PlannerInput& asked = request.planner;
  if (!planned.choice.fits || request.by_hand || asked.budget <= 0) return {};
  const double before = planned.choice.seconds;
  const auto with = [&](int64_t device, int64_t host) {
    plan::PlannerInput input = asked;
    input.micro_batch = planned.plan().micro_batch, input.idle = planned.plan().idle;
    input.budget = device, input.host_budget = host;
    input.incumbent = planned.plan();
    return plan::choose(planned.spec, request.mesh, input, planned.machine).seconds;
  };
  const auto counts = [&](double seconds) { return seconds < before * (1 - kCounts); };
  if (!counts(with(0, asked.host_budget))) return {};
  const int64_t device = step_of(asked.budget, 8 * kGiB);
  const double more_device = with(asked.budget + device, asked.host_budget);
  std::string text = "+" + format_bytes(device) + " of device memory: " + change_text(more_device, before);
  bool host_binds = false;
  if (asked.host_budget > 0) {
    const plan::Profile& profile = request.machine.profile;
    const int world = request.mesh.world(), ranks = profile.devices > 0 ? std::min(profile.devices, world) : world;
    const int64_t host = step_of(asked.host_budget * ranks, 16 * kGiB);
    const double more_host = with(asked.budget, asked.host_budget + host / ranks);
    host_binds = counts(more_host);
    text += "; +" + format_bytes(host) + " of host memory: " + change_text(more_host, before);
  }
  const bool device_binds = counts(more_device);
  return text + (device_binds && host_binds ? "; both bind"
                 : device_binds             ? "; device memory binds"
                 : host_binds               ? "; host memory binds"
                                            : "; no such step alone makes it faster");
}

}  // namespace tessera::planning
