#pragma once
// Finds the file that a recipe's path or name means, refuses a path that is none before it is read, and reads the ~ and
// the variables of paths.
//
//   const std::string file = recipe_at("demo");    // in read_recipe_file
#include <string>

namespace tessera::recipe {

/// Throws UserError (usage) for a folder, naming the recipe in it.
void check_path(const std::string& path);

/// The file that a path means: itself where there is one. Otherwise NAME, NAME.toml and recipes/NAME.toml mean the recipe
/// among those that came with this program, where it is one of them; any other path is given back as it is.
std::string recipe_at(const std::string& path);

/// `path` as a shell would read it: ~ at its beginning is $HOME, $NAME and ${NAME} are variables. A path that is there as
/// it is written stays. Throws UserError (usage) naming `what` for a variable that is not set and for ~NAME.
std::string expand_path(const std::string& path, const std::string& what);

}  // namespace tessera::recipe
