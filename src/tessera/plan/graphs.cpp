#include "tessera/plan/graphs.h"

#include <algorithm>

#include "tessera/base/units.h"

namespace tessera::plan {

namespace {

// Launches of a unit with fused operators, and what the host takes for one [E]: read, never measured on a GPU.
constexpr int64_t kForward = 30, kBackward = 60, kOfLoss = 12;
constexpr int64_t kOfMessage = 2;  // of one within a unit: the library's, and a copy beside it
constexpr double kLaunch = 5e-6;

int64_t messages(const std::vector<Traffic>& traffic, const Mesh& mesh) {
  int64_t count = 0;
  for (const Traffic& t : traffic)
    if (t.several(mesh)) count += t.kind == "ring" ? mesh[Axis::cp] - 1 : 1;
  return kOfMessage * count;
}

/// Up to the norm, of the rank whose stages have most.
int64_t launches(const ModelSpec& model, const Plan& plan) {
  std::vector<int64_t> counts(static_cast<size_t>(plan.mesh[Axis::pp]));
  for (size_t u = 0; u < model.units.size(); ++u) {
    const Footprint& cost = model.units[u].cost;
    const int64_t forward = kForward + messages(cost.traffic, plan.mesh),
                  backward = kBackward + messages(cost.backward_traffic, plan.mesh);
    counts[static_cast<size_t>(plan.stage_of(static_cast<int>(u)) % plan.mesh[Axis::pp])] +=
        (plan.units[u].recomputes() ? 2 : 1) * forward + backward;
  }
  return plan.accumulation() * (std::ranges::max(counts) + kOfLoss * plan.micro_batch);
}

}  // namespace

std::string graphs_absence(const Plan& plan) {
  if (plan.experts > 1) return "several networks take turns";
  if (plan.update != Update::end)
    return "updates within the step (plan.update = " + std::string(name(plan.update)) + ") have numbers of their own";
  for (const UnitPlan& unit : plan.units) {
    if (unit.update_on == Tier::host) return "an update runs on the host";
    if (unit.gradients != Tier::device) return "the host adds up the squares of gradients that it keeps";
    if (unit.parameters == Tier::nvme || (unit.offloads() && unit.offload_to == Tier::nvme))
      return "the host reads and writes what is offloaded to disk";
    if (unit.compresses()) return "the host counts activations that are quantised";
  }
  return "";
}

std::string graphs_absence(const Schedule& schedule, int norm) {
  for (int i = 0; i < norm; ++i) {
    const Instruction& in = schedule.list[static_cast<size_t>(i)];
    const std::string what = std::string(name(in.op)) + (in.name.empty() ? "" : " " + std::string(in.name));
    if (in.lane == Lane::disk || in.lane == Lane::host) return what + " is work of the host";
    if (in.op == Op::update) return what + " has numbers of its own in each step";
  }
  return "";
}

GraphsChoice choose_graphs(std::optional<bool> asked, const ModelSpec& model, const Plan& plan, double computes,
                           const std::string& forbidden) {
  GraphsChoice choice;
  choice.asked = asked.has_value();
  if (asked && !*asked) return choice.why = "plan.graphs says so", choice;
  choice.why = forbidden.empty() ? graphs_absence(plan) : forbidden;
  if (!choice.why.empty()) return choice;
  const int64_t nodes = launches(model, plan);
  const double host = kLaunch * static_cast<double>(nodes);
  choice.gain = host > computes ? host - computes : 0;
  choice.on = asked ? *asked : choice.gain > 0;
  const int64_t one = nodes * kNodeBytes;
  if (choice.on) choice.bytes = std::min(kMostGraphs * one, std::max(kGraphsBytes, one));
  choice.why = "launches take the host " + format_seconds(host) + " of a step [E], whose work takes the device " +
               format_seconds(computes) + ": " +
               (choice.gain > 0 ? "a graph saves up to " + format_seconds(choice.gain) : "nothing to gain");
  return choice;
}

}  // namespace tessera::plan
