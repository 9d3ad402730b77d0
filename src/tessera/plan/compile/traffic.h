#pragma once
// Collectives inside units, for ranks that share tokens. The compiler declares them in the instruction that runs them;
// the engine compares what it ran with the same lists.
//
//   for (const Traffic& t : traffic_of(spec.units[in.unit], plan.units[in.unit], in.op)) t.purpose, t.axes;
#include <cstdint>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::plan {

/// Collectives inside a unit's forward, recompute or backward, in their order.
const std::vector<Traffic>& traffic_of(const UnitSpec& unit, const UnitPlan& plan, Op op);
/// The collective of a forward-only pass's `finish` that broadcasts the last pipeline stage's result.
Traffic result_traffic(int64_t row_bytes);
/// The collective of a forward-only pass's `finish`, which joins the tokens of all ranks.
Traffic prediction_traffic(int64_t row_bytes, const Mesh& mesh);

/// The first unit that has a backward; those before it run forward alone, and keep nothing: no gradient is wanted of their
/// parameters or inputs. With several stages a rank all units have one.
int backward_from(const ModelSpec& model, const Plan& plan);
/// The same where the first unit with a trained parameter is known: `first`, which is `unit`.
int backward_from(int first, const UnitSpec& unit, const Plan& plan);

}  // namespace tessera::plan
