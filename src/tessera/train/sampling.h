#pragma once
// `tessera sample`: videos from trained weights, outside a training run, on any mesh.
//
//   sample(recipe, {.weights = "runs/a/model", .prompts = {"a cat"}, .out = "cat.mp4"});
#include <string>
#include <vector>

#include "tessera/train/recipe.h"

namespace tessera::train {

struct SampleOptions {
  std::string weights;  ///< an exported model folder, or a checkpoint folder of a run; empty: the run's newest
  std::vector<std::string> prompts;  ///< empty: the recipe's
  std::string out;                   ///< file for one prompt, folder for several; empty: RUN/samples
};

/// Joins the ranks of the environment. Returns the exit code.
int sample(Recipe recipe, const SampleOptions& options);

/// dp_shard takes what the other axes leave of the world. Throws UserError (usage) when it does not divide, or names an
/// axis this version cannot run.
Mesh fill_mesh(Mesh mesh, int world);

}  // namespace tessera::train
