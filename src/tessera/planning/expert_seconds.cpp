#include "tessera/planning/expert_seconds.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "tessera/base/units.h"
#include "tessera/plan/simulate/expert_swap.h"

namespace tessera::planning {

namespace {

plan::ExpertSwap moved(const Planned& planned) {
  return plan::expert_swap(planned.spec, planned.plan(), planned.machine, planned.prediction);
}
plan::GateSeconds gated(const Planned& planned) {
  return plan::gate_seconds(planned.spec, planned.plan(), planned.machine, planned.routing.soft);
}
std::string name_of(const Planned& planned, int expert) {
  const auto e = static_cast<size_t>(expert);
  return e < planned.routing.names.size() ? planned.routing.names[e] : "expert " + std::to_string(expert);
}
/// Mean seconds of a step, with the waiting time of expert swaps spread over all steps.
double mean_seconds(const Planned& planned, const plan::ExpertSwap& change) {
  return planned.mean_step() + planned.routing.changes * change.waited;
}

}  // namespace

double mean_step_seconds(const Planned& planned) {
  if (planned.plan().experts <= 1 || planned.routing.gated) return planned.mean_step();
  return mean_seconds(planned, moved(planned));
}

std::vector<SecondsRow> expert_rows(const Planned& planned) {
  if (planned.plan().experts <= 1) return {};
  if (planned.routing.gated) {
    const plan::GateSeconds gate = gated(planned);
    if (planned.routing.soft)
      return {{"with the gate", format_seconds(gate.alike), "all experts evaluate every sample"}};
    return {{"with the gate", format_seconds(gate.alike),
             "if all samples choose one expert, to " + format_seconds(gate.different) + " if they choose " +
                 std::to_string(gate.experts) + " different experts, " + format_seconds(gate.disagreeing) +
                 " where the ranks disagree and each of them chooses one"}};
  }
  const plan::ExpertSwap change = moved(planned);
  std::vector<SecondsRow> rows;
  for (const auto& [expert, step] : planned.of_expert)
    rows.push_back(
        {name_of(planned, expert), format_seconds(step.total),
         "a step of it, above of the " + name_of(planned, 0) + " expert: " + planned.plan().as_of(expert).summary()});
  char share[32];
  std::snprintf(share, sizeof share, "%.3g %%", 100 * planned.routing.changes);
  const std::string often = std::string("before ") + share + " of the steps";
  if (change.bytes == 0) {
    rows.push_back({"expert swap", format_seconds(0), often + ": nothing moves"});
    if (planned.of_expert.empty()) return rows;
  } else {
    rows.push_back({"expert swap", format_seconds(change.waited),
                    often + ", of " + format_seconds(change.seconds) + " in which " + format_bytes(change.bytes) +
                        " of a rank move"});
  }
  rows.push_back({"mean step", format_seconds(mean_seconds(planned, change)), "expert swaps included"});
  return rows;
}

nlohmann::ordered_json expert_json(const Planned& planned) {
  if (planned.plan().experts <= 1) return nullptr;
  nlohmann::ordered_json json = {{"router", planned.routing.gated ? "gate" : "turns"},
                                 {"count", planned.plan().experts}};
  if (planned.routing.gated) {
    const plan::GateSeconds gate = gated(planned);
    json["soft"] = planned.routing.soft;
    json["alike_step_seconds"] = gate.alike;
    json["different_step_seconds"] = gate.different;
    json["different_experts"] = gate.experts;
    json["disagreeing_step_seconds"] = gate.disagreeing;
    json["disagreeing_experts"] = gate.disagreeing_experts;
    return json;
  }
  const plan::ExpertSwap change = moved(planned);
  json["changes_per_step"] = planned.routing.changes;
  json["moved_bytes"] = change.bytes;
  json["moved_seconds"] = change.seconds;
  json["moved_waited_seconds"] = change.waited;
  json["mean_step_seconds"] = mean_seconds(planned, change);
  for (const auto& [expert, step] : planned.of_expert) json["step_seconds_of"][name_of(planned, expert)] = step.total;
  return json;
}

}  // namespace tessera::planning
