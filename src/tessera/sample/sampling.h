#pragma once
// `tessera sample`: videos from trained weights, outside a training run, on any mesh.
//
//   sample(recipe, {.weights = "runs/a/model", .prompts = {"a cat"}, .out = "cat.gif"});
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/clip_format.h"
#include "tessera/recipe/recipe.h"
#include "tessera/sample/with_lora.h"

namespace tessera::sample {

struct SampleOptions {
  std::string weights;  ///< an exported model folder, or a checkpoint folder of a run; empty: the run's newest
  std::vector<LoraStrength> loras = {};    ///< over the weights, which then are the base: model.path, unless given
  std::vector<std::string> prompts;        ///< empty: the recipe's
  std::vector<int64_t> seeds;              ///< a clip for each prompt and seed; empty: sample.seed
  std::string out;                         ///< file for one clip, folder for several; empty: RUN/samples
  std::optional<data::ClipFormat> format;  ///< nothing: by the ending of `out`, else mp4
};

/// Where each clip goes, prompts outer, seeds inner. A single clip goes to `out` where that is an .mp4, a .gif or a new
/// folder of frames; all others go into the folder `out` as sample-0.mp4, or sample-0-seed-7.mp4 for several seeds.
/// Throws UserError (usage) when `out` ends in one format and another is asked for, in one that is not written, or
/// names a file for several clips.
std::vector<std::string> sample_files(const SampleOptions& options, const std::string& run_out, size_t prompts);

/// Joins the ranks of the environment. Returns the exit code.
int sample(recipe::Recipe recipe, const SampleOptions& options);

}  // namespace tessera::sample
