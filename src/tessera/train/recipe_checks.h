#pragma once
// What a recipe's table of keys cannot say: ranges of numbers, and keys that change nothing together with others.
//
//   check_path("runs/demo/run");  check_ranges(recipe.values);    // in load_recipe
//   for (const std::string& words : without_effect(recipe, mesh)) log::warn(words);
#include <string>
#include <vector>

#include "tessera/train/recipe.h"

namespace tessera::train {

/// Throws UserError (usage) for a folder, naming the recipe in it.
void check_path(const std::string& path);

/// Throws UserError (usage) naming the key, its value and what is allowed.
void check_ranges(const Values& values);

/// A sentence for each key that was set and does nothing, or not what its name promises, with what to change. `mesh`:
/// of the ranks that run.
std::vector<std::string> without_effect(const Recipe& recipe, const Mesh& mesh);

}  // namespace tessera::train
