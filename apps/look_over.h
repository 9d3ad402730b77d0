#pragma once
// What is said of a recipe before it runs, once however many ranks there are.
//
//   const train::Recipe recipe = look_over(train::load_recipe(path, overrides), world);
#include "tessera/train/recipe.h"

namespace tessera::apps {

/// `world`: ranks that will run, 0 for those of the recipe's mesh; the mesh is checked against it (UserError, usage).
/// Refuses files that are not what their key says (UserError, input) and warns of keys that change nothing.
train::Recipe look_over(train::Recipe recipe, int world);
/// The same with the ranks of this process's environment; silent under our launcher.
train::Recipe look_over(train::Recipe recipe);

}  // namespace tessera::apps
