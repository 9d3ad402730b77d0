#include "tessera/plan/compile/traffic.h"

#include <algorithm>

#include "tessera/plan/compile/saved_bytes.h"

namespace tessera::plan {

const std::vector<Traffic>& traffic_of(const UnitSpec& unit, const UnitPlan& plan, Op op) {
  if (op == Op::backward) return unit.cost.backward_traffic;
  const std::string replayed = op == Op::recompute ? replayed_sites(unit, plan) : "";
  return replayed.empty() ? unit.cost.traffic : unit.cost.replays.at(replayed).traffic;
}

Traffic result_traffic(int64_t row_bytes) { return {"results", {Axis::pp}, "broadcast", Rows::share, row_bytes}; }

Traffic prediction_traffic(int64_t row_bytes, const Mesh& mesh) {
  return {"tokens", kSequenceAxes, "all_gather", Rows::share, row_bytes * (sequence_size(mesh) - 1)};
}

int backward_from(const ModelSpec& model, const Plan& plan) {
  const auto trained = [](const UnitSpec& unit) { return std::ranges::any_of(unit.params, &ParamSpec::trainable); };
  const auto first = std::ranges::find_if(model.units, trained);
  return first == model.units.end() ? 0 : backward_from(static_cast<int>(first - model.units.begin()), *first, plan);
}

int backward_from(int first, const UnitSpec& unit, const Plan& plan) {
  const bool wants_input = unit.cost.grad_in > 0;  // measured for a caller that asks for gradients of the inputs
  return wants_input || plan.pipeline.chunks > 1 ? 0 : first;
}

}  // namespace tessera::plan
