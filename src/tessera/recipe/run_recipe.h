#pragma once
// RUN/recipe.toml from any folder: its relative paths belong to the folder in which the run was started, which it says
// (run.started_in), and what lies in a run that was moved is found where it is now.
//
//   RecipeFile file = read_recipe_file("runs/a/recipe.toml");
//   settle_paths(file, "runs/a/recipe.toml");
#include <string>

#include "tessera/recipe/recipe_file.h"

namespace tessera::recipe {

inline constexpr const char* kStartedIn = "run.started_in";

/// Takes run.started_in out of the keys and mends the paths among them; without that key nothing changes. Started from
/// the same folder with the run where it was, every value stays as it is written.
void settle_paths(RecipeFile& file, const std::string& path);

}  // namespace tessera::recipe
