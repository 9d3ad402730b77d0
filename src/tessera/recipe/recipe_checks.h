#pragma once
// What is said of a recipe's path before it is read.
//
//   check_path("runs/demo/run");    // in load_recipe
#include <string>

namespace tessera::recipe {

/// Throws UserError (usage) for a folder, naming the recipe in it.
void check_path(const std::string& path);

}  // namespace tessera::recipe
