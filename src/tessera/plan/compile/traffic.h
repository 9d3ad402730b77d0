#pragma once
// The collectives that run inside units, where ranks share a sequence. The compiler declares them with the instruction
// that runs them; the engine holds what it did against the same lists.
//
//   for (const Traffic& t : traffic_of(spec.units[in.unit], plan.units[in.unit], in.op)) t.purpose, t.axes;
#include <cstdint>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::plan {

/// Collectives inside a unit's forward, recompute or backward, in their order.
const std::vector<Traffic>& traffic_of(const UnitSpec& unit, const UnitPlan& plan, Op op);
/// Of the `finish` of a forward-only pass: what the last stage of a pipeline hands to each of the others.
Traffic result_traffic(int64_t row_bytes);
/// The same, where ranks share the tokens.
Traffic prediction_traffic(int64_t row_bytes, const Mesh& mesh);

}  // namespace tessera::plan
