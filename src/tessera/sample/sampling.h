#pragma once
// `tessera sample`: videos from trained weights, outside a training run, on any mesh.
//
//   sample(recipe, {.weights = "runs/a/model", .prompts = {"a cat"}, .out = "cat.gif"});
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/clip_format.h"
#include "tessera/engine/engine.h"
#include "tessera/job/gate_router.h"
#include "tessera/net/model.h"
#include "tessera/recipe/recipe.h"
#include "tessera/sample/validation.h"
#include "tessera/sample/with_lora.h"

namespace tessera::sample {

struct SampleOptions {
  /// an exported model folder, or a checkpoint folder of a run; empty: the newest checkpoint of the run
  std::string weights;
  std::vector<LoraStrength> loras = {};    ///< added to the weights, which default to model.path then
  std::vector<double> strengths = {};      ///< factors of theirs: one file, a column for each, a row for each clip
  std::vector<std::string> prompts;        ///< empty: those of the recipe
  std::vector<int64_t> seeds;              ///< a clip for each prompt and seed; empty: sample.seed
  std::string out;                         ///< file for one clip, folder for several; empty: RUN/samples
  std::optional<data::ClipFormat> format;  ///< empty: by the extension of `out`, else mp4
  int enlarge = 1;                         ///< a pixel is written as a square of as many
};

/// The output path of each clip, prompts in the outer loop and seeds in the inner. A single clip goes to `out` if that
/// is an .mp4, a .gif, a .png or a new folder of frames; otherwise clips go into folder `out` as sample-0.mp4, or
/// sample-0-seed-7.mp4 with several seeds. Throws UserError (usage) if the extension of `out` contradicts the format,
/// is not supported, or names a file for several clips; a folder whose name has such an ending is there, or ends in /.
std::vector<std::string> sample_files(const SampleOptions& options, const std::string& run_out, size_t prompts);

/// Clips of one size and length beside and below each other, [row][column]; a clip with fewer frames shows its last.
data::Frames grid(const std::vector<std::vector<data::Frames>>& rows);

/// Joins the ranks of the environment. Returns the exit code.
int sample(recipe::Recipe recipe, const SampleOptions& options);

// Sampler passes with the right denoiser: the only one, the expert of the timestep, or the expert that a gate chooses.
//
//   denoising.pass(expert_passes(job, router, engine, programs.sample, step));

/// `router`: of a job with a gate, else null. All arguments must outlive the result.
RunBranches expert_passes(const job::Job& job, const job::GateRouter* router, engine::Engine& engine,
                          const plan::ProgramPtr& program, int64_t step);

}  // namespace tessera::sample
