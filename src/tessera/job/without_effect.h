#pragma once
// Keys of a recipe that change nothing together with others.
//
//   for (const std::string& message : without_effect(recipe, mesh)) log::warn(message);
#include <string>
#include <vector>

#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// A sentence for each key that was set and does nothing, or not what its name promises, with what to change. `mesh`:
/// of the ranks that run.
std::vector<std::string> without_effect(const recipe::Recipe& recipe, const Mesh& mesh);

}  // namespace tessera::job
