#pragma once
// The stages of a run: what [[stage]] of a recipe changes from a step on, and the parts of the run that follow from it.
//
//   for (const RunPart& part : run_parts(recipe))
//     run_steps(part.first, part.last, part.recipe);          // part.name(): "stage 1 (from step 100)"
#include <string>
#include <vector>

#include "tessera/recipe/recipe.h"
#include "tessera/recipe/recipe_file.h"

namespace tessera::recipe {

/// Adds the file's stages to a recipe whose other keys are filled in. Throws UserError (usage) naming stage and key:
/// for a step that is not after the one before, for keys that nobody knows, and for keys that hold for a whole run.
void add_stages(Recipe& recipe, const RecipeFile& file);

/// Steps first..last of a run under one set of values: those of the recipe (number 0), or of its n-th stage.
struct RunPart {
  int number = 0;
  int64_t first = 1, last = 0;
  Recipe recipe;        ///< with the changes of this stage and of those before it; without stages of its own
  std::string changes;  ///< as changes_text says; empty for number 0
  std::string name() const;
};

/// The parts of a run in their order. A stage that begins after run.steps has none.
std::vector<RunPart> run_parts(const Recipe& recipe);

/// Samples of a global batch by bucket, where data.buckets says them; else empty.
std::map<int, int64_t> batches(const Recipe& recipe);

/// Whether any of them makes samples: then the prompts of all are encoded before step one.
bool any_samples(const std::vector<RunPart>& parts);

/// Does `act`; what it refuses is said with the name of the stage. Nothing is added outside of stages.
template <class Act>
auto in_part(const RunPart& part, Act&& act) {
  try {
    return act();
  } catch (const UserError& error) {
    if (part.number == 0) throw;
    throw UserError(error.code(), part.name(), error.what());
  }
}

/// Whether the same samples and embeddings serve both: no key of data.* and nothing of the prompts differs.
bool same_data(const Recipe& a, const Recipe& b);

// The text of a recipe's stages.
//
//   changes_text(stage);                                            // "data.frames = 33, train.global_batch = 8"

/// "[[stage]] from = 100 ..." for each, as the resolved recipe has it.
std::string stages_toml(const std::vector<Stage>& stages);
/// "data.frames = 33, train.global_batch = 8": the changes in one line.
std::string changes_text(const Stage& stage);

}  // namespace tessera::recipe
