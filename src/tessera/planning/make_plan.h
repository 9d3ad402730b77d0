#pragma once
// A plan, with what to change where none fits and what of the request had no effect.
//
//   const Planned planned = make_plan(request);
//   planned.choice.advice; planned.choice.warning;
#include "tessera/planning/planning.h"

namespace tessera::planning {

/// Measures the model, chooses (or takes) the plan and simulates it. When nothing fits, choice.advice says what to
/// change and what that costs.
Planned make_plan(const PlanRequest& request);

}  // namespace tessera::planning
