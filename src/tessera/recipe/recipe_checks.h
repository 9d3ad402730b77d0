#pragma once
// What a recipe's table of keys cannot say: the ranges of numbers.
//
//   check_path("runs/demo/run");  check_ranges(recipe.values);    // in load_recipe
#include <string>

#include "tessera/base/options.h"

namespace tessera::recipe {

/// Throws UserError (usage) for a folder, naming the recipe in it.
void check_path(const std::string& path);

/// Throws UserError (usage) naming the key, its value and what is allowed.
void check_ranges(const Values& values);

}  // namespace tessera::recipe
