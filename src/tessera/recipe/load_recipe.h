#pragma once
// From a file and the command line to a checked recipe.
//
//   Recipe recipe = load_recipe("recipe.toml", {{"train.lr", "1e-4"}});
#include "tessera/recipe/recipe.h"

namespace tessera::recipe {

using Overrides = std::vector<std::pair<std::string, std::string>>;

/// The file, then the command line over it. Throws UserError (usage) naming file or flag, key and the nearest known
/// one; (input) when the file cannot be read. Without a path the overrides are all there is.
Recipe load_recipe(const std::string& path, const Overrides& overrides);

}  // namespace tessera::recipe
