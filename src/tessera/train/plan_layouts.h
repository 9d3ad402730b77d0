#pragma once
// What the meshes of as many ranks as the request's cost.
//
//   std::fputs(layouts_text(plan_request(recipe, job, shapes, mesh, prompts)).c_str(), stdout);
#include <string>

#include "tessera/train/planning.h"

namespace tessera::train {

/// The fastest first, as a table for a terminal. Throws UserError (usage) when no mesh of so many ranks is legal for
/// the model.
std::string layouts_text(const PlanRequest& request);

}  // namespace tessera::train
