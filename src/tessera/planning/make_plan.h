#pragma once
// Makes a plan, with advice if none fits and warnings about settings without effect.
//
//   const Planned planned = make_plan(request);
//   planned.choice.advice; planned.choice.warning;
#include "tessera/planning/planning.h"

namespace tessera::planning {

/// Measures the model, chooses (or takes) the plan and simulates it. If nothing fits, choice.advice says what to
/// change, with memory and time of the changed run.
Planned make_plan(const PlanRequest& request);

}  // namespace tessera::planning
