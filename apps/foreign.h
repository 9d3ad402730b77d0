#pragma once
// Commands that take options of other programs beside a recipe: the training line of the field, DeepSpeed's JSON, Wan's
// generate.py.
//
//   c.foreign = foreign_flags(tools::training_line());
//   const Given given = recipe_from(arguments, arguments.overrides, world);
//   given.recipe; given.translation.file;
#include "commands.h"
#include "tessera/job/given_checks.h"
#include "tessera/recipe/recipe.h"
#include "tessera/recipe/run_recipe.h"
#include "tessera/tools/import/dialects.h"

namespace tessera::apps {

/// The flags of a dialect's options.
std::vector<Flag> foreign_flags(const tools::Dialect& dialect);
/// Those of commands that train, with --deepspeed FILE.
std::vector<Flag> training_flags();

struct Translated {
  recipe::Recipe recipe;
  tools::Translation translation;  ///< empty where no option of another program was given
};

/// The recipe of a command: what other programs assume, the recipe file (needed only where none of their options is
/// given), their options, the `keys` typed as flags; each wins over those before it. What the options come to is said
/// by `tell`. `world`: ranks that run, 0 for those of the mesh. Throws UserError (usage) for
/// options that cannot be had.
Translated recipe_from(const Arguments& arguments, const recipe::Overrides& keys, int world);
/// The same with the ranks of this process's environment; told once, by rank 0 or the launcher.
Translated recipe_from(const Arguments& arguments, const recipe::Overrides& keys);
/// A line of the log for each option.
void tell(const tools::Translation& translation);

/// Says what is to be said of a recipe before it runs, once however many ranks there are.
/// `world`: ranks that will run, 0 for those of the recipe's mesh; the mesh is checked against it (UserError, usage).
/// Refuses files that are not what their key says (UserError, input) and warns of keys that change nothing.
/// In a plan weights may be missing.
recipe::Recipe look_over(recipe::Recipe recipe, int world, job::Missing missing = job::Missing::refused);
/// The same with the ranks of this process's environment; silent under our launcher.
recipe::Recipe look_over(recipe::Recipe recipe);

}  // namespace tessera::apps
