#include "tessera/planning/more_memory.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/in_threads.h"
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

std::vector<MemoryPrice> memory_prices(const PlanRequest& request, const Planned& planned) {
  const plan::PlannerInput& asked = request.planner;
  if (!planned.choice.fits || request.by_hand || asked.budget <= 0) return {};
  const auto with = [&](int64_t device, int64_t host) {
    plan::PlannerInput input = asked;
    input.micro_batch = planned.plan().micro_batch, input.idle = planned.plan().idle;
    input.budget = device, input.host_budget = host;
    input.incumbent = planned.plan(), input.rungs = 0;
    return plan::choose(planned.spec, request.mesh, input, planned.machine).seconds;
  };
  const auto counts = [&](double seconds) { return seconds < planned.choice.seconds * (1 - kCounts); };
  if (!counts(with(0, asked.host_budget))) return {};
  const int64_t device = step_of(asked.budget, 8 * kGiB);
  std::vector<MemoryPrice> prices = {{plan::Tier::device, device, 0, false}};
  int64_t host = 0;  // of a rank
  if (asked.host_budget > 0) {
    const plan::Profile& profile = request.machine.profile;
    const int world = request.mesh.world(), ranks = profile.devices > 0 ? std::min(profile.devices, world) : world;
    const int64_t bytes = step_of(asked.host_budget * ranks, 16 * kGiB);
    prices.push_back({plan::Tier::host, bytes, 0, false}), host = bytes / ranks;
  }
  for_each_in_threads(prices.size(), [&](size_t i) {
    MemoryPrice& price = prices[i];
    price.seconds = price.memory == plan::Tier::device ? with(asked.budget + device, asked.host_budget)
                                                       : with(asked.budget, asked.host_budget + host);
    price.binds = counts(price.seconds);
  });
  return prices;
}

std::string more_memory(const Planned& planned) {
  std::string text;
  int binding = 0;
  std::string_view last;
  for (const MemoryPrice& price : planned.prices) {
    text += "+" + format_bytes(price.bytes) + " of " + std::string(name(price.memory)) +
            " memory: " + change_text(price.seconds, planned.choice.seconds) + "; ";
    if (price.binds) ++binding, last = name(price.memory);
  }
  if (text.empty()) return text;
  return text + (binding > 1    ? "both bind"
                 : binding == 1 ? std::string(last) + " memory binds"
                                : "more of one memory alone makes the step no faster");
}

}  // namespace tessera::planning
