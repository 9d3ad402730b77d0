#include "tessera/plan/compile/traffic.h"

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

}  // namespace tessera::plan
