#pragma once
// A sample of a training step: its timestep, noise and target velocity, drawn by (seed, step, position) alone, so that
// every mesh trains on the same numbers.
//
//   TrainingSample s = noised(settings, conditions, {latent, context, extra}, step, place);
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tessera/diffusion/distillation.h"
#include "tessera/diffusion/flow.h"
#include "tessera/diffusion/loss.h"
#include "tessera/families/frames/given_frames.h"
#include "tessera/net/model.h"

namespace tessera::diffusion {

struct TrainingSample {
  net::Sample input;         ///< noisy latent and other inputs of the model
  at::Tensor velocity;       ///< [C, F, H, W], the target
  double weight = 1;         ///< of the sample's loss
  ops::ErrorForm form = {};  ///< of its error
  /// Of each latent frame in the mean over frames that the loss is; empty: 1 each. Frames that are given have 0.
  std::vector<double> frame_weights = {};
  at::Tensor weights = {};  ///< [F, H, W] of the errors at each place of the latent, by its mask; undefined: 1 each
  int64_t index = 0;        ///< index in the data set
  int set = 0;              ///< of the run's data sets, from 0
  bool from_base = false;   ///< its target is what the model predicts without its adapters
  bool twin = false;        ///< of the sample before it, with another caption, for that target alone
  /// The input with the caption of no words, from whose prediction the target is moved away (Guidance); none: it stays.
  std::optional<net::Sample> unguided = {};
  double guidance = 1;  ///< how far
  bool zero_guidance = false;
  std::optional<FlowCall> call = {};  ///< of a student: `input` is the network's
};
/// The samples of a step in host memory, by position in the global batch.
using TrainingSamples = std::map<int64_t, std::shared_ptr<const TrainingSample>>;

/// A sample as stored in the data set.
struct CleanSample {
  at::Tensor latent;   ///< [C, F, H, W] fp32
  at::Tensor context;  ///< [n, D] fp32
  std::map<std::string, at::Tensor> extra = {};
  std::vector<families::GivenFrames> given = {};  ///< of this draw: what given_frames() said
  std::vector<at::Tensor> pieces = {};            ///< latents of those that are encoded on their own
  at::Tensor mask = {};                           ///< [F, H, W] in 0..1, with LossRule::masks; undefined: of ones
};

/// Bytes of the sample's tensors.
int64_t host_bytes(const TrainingSample& sample);

/// A sample as the bytes of a message to another rank of the run, kMessageHead and those of each tensor by 64. (A head that
/// tells of very many frames takes as much again.)
inline constexpr int64_t kMessageHead = 1024;
int64_t message_bytes(const TrainingSample& sample);
void write_message(int64_t place, const TrainingSample& sample, char* to);
/// The reverse. Its tensors lie in `message`, [message_bytes] of bytes.
std::pair<int64_t, std::shared_ptr<const TrainingSample>> read_message(const at::Tensor& message);

/// How a student's samples are noised, and how its teacher is guided.
struct AngleDraws {
  bool on = false;  ///< noised at angles
  TrigFlow flow = {};
  double mean = 0, std = 1;
  std::vector<double> guidance = {};  ///< strengths, of which each sample has one; empty: the teacher is not guided
  bool second = false;                ///< of a pair: noise and angle of its own, and of a share the largest angle
  double largest = 0, largest_share = 0;
};
/// What is drawn of a sample beside its noise and angle: number 1, 2, ...
double normal_beside(uint64_t seed, int64_t step, int64_t place, int number);
at::Tensor noise_beside(uint64_t seed, int64_t step, int64_t place, int number, at::IntArrayRef sizes);

struct NoiseSettings {
  uint64_t seed = 0;
  Options timesteps = {};
  AngleDraws angles = {};  ///< if they are on, in place of `timesteps` and all below but caption_dropout
  LossRule loss = {};
  /// share of samples that begin with a clean frame, for models that support it (net::Conditions)
  double image_share = 0;
  /// Kinds of given frames by their weights, in place of image_share; for models with Conditions::given_frames.
  std::vector<families::Weighted> conditions = {};
  /// Kinds of masks of frames without noise by their ratios, likewise; for models with Conditions::frame_masks.
  std::vector<families::Weighted> mask_ratios = {};
  /// 1.3's kinds of frames beside the noisy ones by their weights, for models that reads_beside(), and what is left out.
  std::vector<families::Weighted> mask_types = {}, drop_condition = {};
  std::vector<families::Weighted> condition_dropout = {};  ///< shares of samples whose condition of a name is zeros
  double caption_dropout = 0;    ///< share of samples whose context is replaced by that of an empty caption:
  at::Tensor null_context = {};  ///< [n, D] fp32; needed for a share above 0
  at::Tensor null_glyphs = {};   ///< what is quoted in it, dropped with it; undefined: nothing is
  double pooled_dropout = 0;     ///< likewise of extra "pooled", by a draw of its own:
  at::Tensor null_pooled = {};   ///< [D] fp32
  /// Of the caption of no words, for loss.guidance: [n, D] and [D] fp32.
  at::Tensor blank_context = {}, blank_pooled = {};
  /// For models with Conditions::chunks_in_time: every clip of several latent frames has a timestep for each.
  ChunkDraws chunks = {};
};

/// The frames of a clip that are given beside the noisy ones in this draw, so far as they are encoded or sliced by
/// themselves; none without `settings.conditions` or a noisy kind of `settings.mask_types`.
std::vector<families::GivenFrames> given_frames(const NoiseSettings& settings, const net::Conditions& conditions,
                                                int64_t frames, int64_t latent_frames, int64_t step, int64_t place);

TrainingSample noised(const NoiseSettings& settings, const net::Conditions& conditions, const CleanSample& clean,
                      int64_t step, int64_t place);

/// A held-out sample at a given sigma: noise of `number`, its own caption, no frames that are drawn. Of no random numbers
/// that training uses.
TrainingSample held_out(const NoiseSettings& settings, const net::Conditions& conditions, const CleanSample& clean,
                        double sigma, int64_t number);

}  // namespace tessera::diffusion
