#pragma once
// What is said of a recipe before it runs, once however many ranks there are.
//
//   const recipe::Recipe recipe = look_over(recipe::load_recipe(path, overrides), world);
#include "tessera/job/sources.h"
#include "tessera/recipe/recipe.h"

namespace tessera::apps {

/// `world`: ranks that will run, 0 for those of the recipe's mesh; the mesh is checked against it (UserError, usage).
/// Refuses files that are not what their key says (UserError, input) and warns of keys that change nothing.
/// In a plan weights may be missing.
recipe::Recipe look_over(recipe::Recipe recipe, int world, job::Missing missing = job::Missing::refused);
/// The same with the ranks of this process's environment; silent under our launcher.
recipe::Recipe look_over(recipe::Recipe recipe);

}  // namespace tessera::apps
