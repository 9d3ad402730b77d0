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

/// What is encoded before the steps is held against the budget as they are: a plan beside which it does not fit does not
/// fit, and its advice says with which budget it would.
void hold_prepare(const PlanRequest& request, Planned& planned);

}  // namespace tessera::planning
