#pragma once
// Samples during training: the sampler's loop cut into passes, because each pass is one run of the `sample` schedule.
//
//   validation.pass(step, [&](const auto& batches, double t, const at::Tensor&) {
//     return executor.forward(schedule, step, batches);
//   });
//   if (auto done = validation.take_finished()) validation.write(step, *done, log);
#include <filesystem>

#include "tessera/data/video.h"
#include "tessera/diffusion/sampler.h"
#include "tessera/job/job.h"
#include "tessera/prepare/prepare.h"
#include "tessera/recipe/recipe.h"
#include "tessera/report/run_log.h"

namespace tessera::sample {

/// Runs the denoiser of timestep `t` and a prompt's `context` [n, D] on packed branches: one prediction [T, C] a
/// branch. All branches are of one denoiser, that of the prompt.
using RunBranches =
    std::function<std::vector<at::Tensor>(const std::vector<net::Batch>&, double t, const at::Tensor& context)>;

/// Frames a second of a sample: those of the data, or 16 where data.fps = 0 keeps the clips' own.
double sample_fps(const recipe::Recipe& recipe);

/// One prompt's way from noise to a latent, a sampler step at a time.
class Denoising {
 public:
  /// `extra`: what the model takes beside text, the same for all branches of guidance.
  Denoising(const recipe::Recipe& recipe, const job::Job& job, int prompt, at::Tensor context, at::Tensor negative,
            std::map<std::string, at::Tensor> extra);
  void pass(const RunBranches& run);
  bool done() const { return passes_ == job::sample_passes(recipe_, *job_.model); }
  /// How much sound changes the prediction in the middle of the way: the root of the mean square of the difference to
  /// that for silence, by that of the prediction for silence. Nothing for a model that hears nothing.
  std::optional<double> audio_effect() const { return audio_effect_; }
  const at::Tensor& latent() const { return x_; }

 private:
  void hold_first_frame();
  void compare_with_silence(const RunBranches& run);

  const recipe::Recipe& recipe_;
  const job::Job& job_;
  const at::Tensor context_, negative_;
  const std::map<std::string, at::Tensor> extra_;
  std::unique_ptr<diffusion::Sampler> sampler_;
  at::Tensor x_;
  int next_ = 0, passes_ = 0;
  net::Sample heard_;  // of the step in the middle
  at::Tensor heard_velocity_;
  std::optional<double> audio_effect_;
};

class Validation {
 public:
  Validation(const recipe::Recipe& recipe, const job::Job& job, const prepare::PreparedData& data,
             std::filesystem::path out);

  /// samples/step-000100-0.mp4
  static std::filesystem::path file(const std::filesystem::path& out, int64_t step, int prompt);

  struct Finished {
    int prompt = 0;
    at::Tensor latent;
    std::optional<double> audio_effect = {};
  };

  /// One sampler step of one prompt; prompts follow each other.
  void pass(int64_t step, const RunBranches& run);
  std::optional<Finished> take_finished();
  /// Decodes, writes samples/step-000100-0.mp4 and books it. The first time a prompt that is a clip's own caption is
  /// sampled, that clip and what the autoencoder keeps of it go to references/, for the report.
  void write(int64_t step, const Finished& finished, report::RunLog& log);

 private:
  const data::Frames& reconstruction(int prompt, int64_t clip);
  const recipe::Recipe& recipe_;
  const job::Job& job_;
  const prepare::PreparedData& data_;
  const std::filesystem::path out_;
  int prompt_ = 0;
  std::optional<Denoising> denoising_;
  std::optional<Finished> finished_;
  std::map<int, data::Frames> reconstructions_;  ///< by prompt
};

}  // namespace tessera::sample
