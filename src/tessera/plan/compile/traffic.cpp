// Collectives inside units, for ranks that share tokens: the instruction that runs them declares them.
#include "tessera/plan/compile/traffic.h"

#include "tessera/plan/compile/compiler.h"
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

int64_t Compiler::samples(int micro) const { return forward_only_ ? 1 : plan_.slice(dp_rank_, micro).count; }

/// Tokens of the whole micro-batch, over all ranks that share it.
int64_t Compiler::tokens(int micro) const { return model_.sequence / model_.samples * samples(micro); }

void Compiler::declare(Instruction& in, const std::vector<Traffic>& traffic) const {
  if (for_memory_) return;
  for (const Traffic& t : traffic) {
    if (!t.several(plan_.mesh)) continue;
    const GroupName& group = group_name(t.purpose, t.axes);
    in.comm.push_back(
        {group.axis, t.kind, t.bytes(tokens(in.micro), plan_.mesh, rank_, samples(in.micro)), group.name});
  }
  if (!in.comm.empty()) in.group = in.comm.front().group;
}

}  // namespace tessera::plan
