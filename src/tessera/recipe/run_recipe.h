#pragma once
// Which keys of a recipe are paths, and how these are read. RUN/recipe.toml works from any folder: its relative paths
// belong to the folder in which the run was started, which it says (run.started_in), and what lies in a run that was moved
// is found where it is now.
//
//   RecipeFile file = read_recipe_file("runs/a/recipe.toml");
//   settle_paths(file, "runs/a/recipe.toml");
#include <string>

#include "tessera/recipe/recipe.h"
#include "tessera/recipe/recipe_file.h"

namespace tessera::recipe {

inline constexpr const char* kStartedIn = "run.started_in";

/// Takes run.started_in out of the keys and mends the paths among them; without that key nothing changes. Started from
/// the same folder with the run where it was, every value stays as it is written.
void settle_paths(RecipeFile& file, const std::string& path);

/// A value as it is written in a file or typed as a flag, with ~ and variables read (expand_path) where the key's values
/// are paths; `where` names file or flag in messages.
std::string expanded(const std::string& key, const std::string& value, const std::string& where);

// From a file and the command line to a checked recipe.
//
//   Recipe recipe = load_recipe("recipe.toml", {{"train.lr", "1e-4"}});

using Overrides = std::vector<std::pair<std::string, std::string>>;

/// The file, then the command line over it. Throws UserError (usage) naming file or flag, key and the nearest known
/// one; (input) when the file cannot be read. Without a path the overrides are all there is.
Recipe load_recipe(const std::string& path, const Overrides& overrides);

}  // namespace tessera::recipe
