#pragma once
// Generates samples during training: the sampler's loop is divided into passes, each one run of the `sample` schedule.
//
//   validation.pass(step, [&](const auto& batches, double t, const at::Tensor&) {
//     return engine.forward(schedule, batches, step);
//   });
//   if (auto done = validation.take_finished()) written = validation.write(step, *done);       // rank 0
#include <filesystem>

#include "tessera/data/video.h"
#include "tessera/diffusion/sampler.h"
#include "tessera/job/job.h"
#include "tessera/prepare/prepare.h"
#include "tessera/recipe/recipe.h"
#include "tessera/report/run_log.h"
#include "tessera/sample/clip_chain.h"

namespace tessera::sample {

/// Runs the denoiser of timestep `t` and a prompt's `context` [n, D] on packed guidance branches; returns one
/// prediction [T, C] for each. All branches use the prompt's denoiser.
using RunBranches =
    std::function<std::vector<at::Tensor>(const std::vector<net::Batch>&, double t, const at::Tensor& context)>;

/// One prompt's denoising from noise to a latent, one sampler step at a time.
class Denoising {
 public:
  /// `shapes`: of the job, or of the stage that is sampled. `extra`: inputs of the model beside text, the same for all guidance branches but the one without given frames. `clip`: of a sample of several, each with noise of its own.
  Denoising(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes, int prompt,
            prepare::EncodedText text, prepare::EncodedText negative, std::map<std::string, at::Tensor> extra,
            int64_t clip = 0);
  /// The clip is made a chunk of so many latent frames after another, each behind what the finished ones have left
  /// (net/tokens.h); before the first pass. `reach`: chunks that one reads; 0: all. A chunk takes a pass more, behind whose
  /// last step its states are stored, but for the last one.
  void in_chunks(int64_t frames, int64_t reach);
  void pass(const RunBranches& run);
  bool done() const { return chunk_ + 1 == bounds_.size(); }
  /// Effect of audio on the prediction in the middle of denoising: root mean square of the difference to the prediction
  /// with silence, relative to that prediction. Empty for a model without audio input.
  std::optional<double> audio_effect() const { return audio_effect_; }
  const at::Tensor& latent() const { return histories_.empty() && !done() ? part_ : x_; }

 private:
  std::vector<net::Batch> pack_branches(net::Sample sample);
  void begin_chunk();
  void end_chunk();
  void store_chunk(const RunBranches& run);
  at::Tensor noise_of_part(int64_t number) const;
  void hold_first_frame();
  void set_text(net::Sample& sample, const prepare::EncodedText& text) const;
  at::Tensor guided(const std::vector<net::Batch>& branches, const std::vector<at::Tensor>& out) const;
  void measure_audio_effect(const RunBranches& run);

  const recipe::Recipe& recipe_;
  const job::Job& job_;
  const job::Shapes& shapes_;
  const uint64_t seed_;
  const int prompt_;
  const prepare::EncodedText text_, negative_;
  const std::map<std::string, at::Tensor> extra_;
  std::unique_ptr<diffusion::Sampler> sampler_;
  at::Tensor x_;                 // of the clip: noise, and behind the chunks that are done what they have become
  at::Tensor part_;              // of the chunk
  std::vector<int64_t> bounds_;  // of chunks, in latent frames
  size_t chunk_ = 0;
  std::vector<std::shared_ptr<net::History>> histories_;  // of each branch; none where the clip is whole
  std::vector<net::History::Left> left_;                  // by the last pass
  int next_ = 0;
  net::Sample middle_sample_;  // of the middle step
  at::Tensor middle_velocity_;
  std::optional<double> audio_effect_;
};

class Validation {
 public:
  Validation(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes,
             const prepare::PreparedData& data, std::filesystem::path out);

  /// samples/step-000100-0.mp4
  static std::filesystem::path file(const std::filesystem::path& out, int64_t step, int prompt);

  struct Finished {
    int prompt = 0;
    int64_t clip = 0;
    bool last = true;  ///< of its clips
    at::Tensor latent;
    std::optional<double> audio_effect = {};
  };

  /// One sampler step of one prompt; prompts run one after another.
  void pass(int64_t step, const RunBranches& run);
  std::optional<Finished> take_finished();
  /// Decodes a clip, and after the last one writes samples/step-000100-0.mp4 and gives what is logged of it. If the prompt
  /// is a clip's own caption, the first call also writes that clip and its reconstruction by the autoencoder to
  /// references/, for the report.
  std::optional<report::RunLog::Sample> write(int64_t step, const Finished& finished);
  /// After a clip that is not the last one: every rank gets what rank 0 has read for the next. All ranks together.
  void go_on(comm::Group& world);

 private:
  const data::Frames& reconstruction(int prompt, int64_t clip);
  /// samples/grid.jpg: a row a prompt, a column a step, the middle frame of each sample; of very many steps some, from the
  /// first to the last.
  void draw_grid(int64_t step, int prompt, const data::Frames& frames);
  const recipe::Recipe& recipe_;
  const job::Job& job_;
  const job::Shapes& shapes_;
  const prepare::PreparedData& data_;
  const ClipChain chain_;
  const std::filesystem::path out_;
  int prompt_ = 0;
  int64_t clip_ = 0;  // of the prompt's sample
  ChainedSample made_;
  prepare::Extras extra_, next_;  // inputs of this clip, and those that rank 0 has made for the next
  std::optional<Denoising> denoising_;
  std::optional<Finished> finished_;
  std::map<int, data::Frames> reconstructions_;            ///< by prompt
  std::map<std::pair<int64_t, int>, data::Frames> cells_;  ///< of the grid, by step and prompt
};

}  // namespace tessera::sample
