#pragma once
// Samples during training: the sampler's loop cut into passes, because each pass is one run of the `sample` schedule.
//
//   validation.pass(step, [&](const auto& batches) { return executor.forward(schedule, step, batches); });
//   if (auto done = validation.take_finished()) validation.write(step, *done, log);
#include <filesystem>

#include "tessera/data/video.h"
#include "tessera/diffusion/sampler.h"
#include "tessera/train/job.h"
#include "tessera/train/prepare.h"
#include "tessera/train/recipe.h"
#include "tessera/train/run_log.h"

namespace tessera::train {

/// Runs the denoiser on packed branches: one prediction [T, C] a branch.
using RunBranches = std::function<std::vector<at::Tensor>(const std::vector<net::Batch>&)>;

/// One prompt's way from noise to a latent, a sampler step at a time.
class Denoising {
 public:
  Denoising(const Recipe& recipe, const Job& job, int prompt, at::Tensor context, at::Tensor negative);
  void pass(const RunBranches& run);
  bool done() const { return next_ == static_cast<int>(recipe_.sample.steps); }
  const at::Tensor& latent() const { return x_; }

 private:
  const Recipe& recipe_;
  const Job& job_;
  const at::Tensor context_, negative_;
  std::unique_ptr<diffusion::Sampler> sampler_;
  at::Tensor x_;
  int next_ = 0;
};

class Validation {
 public:
  Validation(const Recipe& recipe, const Job& job, const PreparedData& data, std::filesystem::path out);

  struct Finished {
    int prompt = 0;
    at::Tensor latent;
  };

  /// One sampler step of one prompt; prompts follow each other.
  void pass(int64_t step, const RunBranches& run);
  std::optional<Finished> take_finished();
  /// Decodes, writes samples/step-000100-0.mp4 and books it. The first time a prompt that is a clip's own caption is
  /// sampled, that clip and what the autoencoder keeps of it go to references/, for the report.
  void write(int64_t step, const Finished& finished, RunLog& log);

 private:
  const data::Frames& reconstruction(int prompt, int64_t clip);
  const Recipe& recipe_;
  const Job& job_;
  const PreparedData& data_;
  const std::filesystem::path out_;
  int prompt_ = 0;
  std::optional<Denoising> denoising_;
  std::optional<Finished> finished_;
  std::map<int, data::Frames> reconstructions_;  ///< by prompt
};

/// [3, F, H, W] in [-1, 1], clamped, to bytes.
data::Frames to_frames(const at::Tensor& pixels, double fps);
/// And back.
at::Tensor to_pixels(const data::Frames& frames);

}  // namespace tessera::train
