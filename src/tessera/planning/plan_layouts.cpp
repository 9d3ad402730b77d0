#include "tessera/planning/plan_layouts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/base/in_threads.h"
#include "tessera/base/units.h"
#include "tessera/plan/search/planner.h"
#include "tessera/planning/mesh_checks.h"
#include "tessera/planning/rank_share.h"
#include "tessera/report/terminal_text.h"

namespace tessera::planning {

namespace {

constexpr size_t kShown = 12;

std::string layout_row(const plan::Layout& layout) {
  const plan::Choice& c = layout.choice;
  const std::string plan = c.plan.summary();
  return report::in_column(layout.mesh.to_string(), 40) +
         report::in_column(c.fits ? format_seconds(c.seconds) : "does not fit", 16) +
         report::in_column(format_bytes(c.memory.peak), 12) +
         report::in_column(format_bytes(c.memory.host.total()), 12) + plan.substr(0, plan.find(", global batch")) +
         "\n";
}

}  // namespace

Layouts find_layouts(const PlanRequest& request) {
  plan::LayoutBounds bounds = layout_bounds(*request.model, request.latent);
  bounds.world = request.mesh.world();
  bounds.node = request.machine.profile.devices;
  plan::PlannerInput input = request.planner;
  if (request.any_micro_batch) input.micro_batch = 1;
  // Cost and memory of a rank depend on how tokens and features are shared, not on the other dp ranks, but for encoders.
  std::map<std::array<int64_t, 4>, MeasuredModels> known;
  const auto measured_on = [&](const Mesh& mesh) {
    PlanRequest there = on_mesh(request, mesh).value();  // as many ranks: encoders on the host take as much
    there.mesh = Mesh{};
    for (Axis axis : plan::kSequenceAxes) there.mesh[axis] = mesh[axis];
    plan::Plan batch;
    batch.mesh = mesh, batch.global_batch = input.global_batch, batch.micro_batch = input.micro_batch;
    plan::Measured measured =
        measure_batch(there, batch, known[{mesh[Axis::cp], mesh[Axis::sp], mesh[Axis::tp], there.of_mesh}]);
    measured.machine.beside = there.machine.beside;
    return plan::OnMesh{std::move(measured), there.planner.budget, there.planner.host_budget};
  };
  Layouts found{bounds.world, input.global_batch, input.micro_batch, plan::search_layouts(bounds, input, measured_on)};
  if (found.list.empty())
    throw UserError(Exit::usage, "plan.layouts",
                    "no mesh of " + std::to_string(bounds.world) + " ranks takes a global batch of " +
                        std::to_string(input.global_batch),
                    "give train.global_batch more samples, or fewer ranks");
  return found;
}

std::string layouts_text(const Layouts& found) {
  std::string text = "layouts of " + std::to_string(found.world) + " ranks, global batch " +
                     std::to_string(found.global_batch) + " in micro-batches of " + std::to_string(found.micro_batch) +
                     ": " + std::to_string(found.list.size()) + " tried, the fastest first\n" +
                     report::in_column("mesh", 40) + report::in_column("a step", 16) + report::in_column("device", 12) +
                     report::in_column("host", 12) + "plan\n";
  for (size_t i = 0; i < std::min(kShown, found.list.size()); ++i) text += layout_row(found.list[i]);
  const plan::Layout& first = found.list.front();
  if (first.choice.fits) text += "use --mesh " + first.mesh.to_string() + "\n";
  return text;
}

std::string layouts_json(const Layouts& found) {
  using LayoutJson = nlohmann::ordered_json;
  LayoutJson list = LayoutJson::array();
  for (const plan::Layout& layout : found.list) {
    LayoutJson mesh = LayoutJson::object();
    for (Axis axis : kAllAxes) mesh[std::string(axis_name(axis))] = layout.mesh[axis];
    const plan::Choice& c = layout.choice;
    list.push_back({{"mesh", mesh},
                    {"fits", c.fits},
                    {"seconds", c.seconds},
                    {"peak_bytes", c.memory.peak},
                    {"host_bytes", c.memory.host.total()},
                    {"plan", c.plan.summary()}});
  }
  const LayoutJson json = {{"ranks", found.world},
                           {"global_batch", found.global_batch},
                           {"micro_batch", found.micro_batch},
                           {"layouts", list}};
  return json.dump(2);
}

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
    input.incumbent = planned.plan(), input.thrifty = false;
    return plan::choose(planned.spec, request.mesh, input, planned.machine).seconds;
  };
  const auto counts = [&](double seconds) { return seconds < planned.choice.fastest * (1 - kCounts); };
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
