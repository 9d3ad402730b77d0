#pragma once
// The settings of the user before a search: what they say of each other. Internal to the planner.
//
//   const PlannerInput input = placed(reconciled(by_hand, blocks));
#include "tessera/plan/search/planner_input.h"

namespace tessera::plan {

/// Sets recompute_units from recompute_every, for a model with so many blocks: block 0 and each at a multiple of it
/// recompute. Throws UserError (usage) where recompute and activations disagree.
PlannerInput reconciled(PlannerInput input, int blocks);

/// Updates on the host place their buffers there, unless these are set too. Throws UserError (usage) where they are set
/// to another place.
PlannerInput placed(PlannerInput input);

}  // namespace tessera::plan
