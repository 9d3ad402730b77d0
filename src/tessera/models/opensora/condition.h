#pragma once
// The frames that Open-Sora 2.0's trainer and sampler give beside the noisy latent: which, and the tensor that holds them.
//
//   const std::vector<ConditionWeight> fit = fitting({{"t2v", 1}, {"i2v_head", 5}}, 9, /*causal=*/true);
//   const std::string kind = chosen(fit, u);                                        // u uniform in 0..1
//   std::vector<Tensor> pieces;
//   for (const GivenFrames& given : given_frames(kind, 33, 9, true)) pieces.push_back(encode(frames of `given`));
//   sample.extra["cond"] = condition(latent, given_frames(kind, 33, 9, true), pieces);
//
// Kinds: t2v (nothing is given), i2v_head, i2v_tail, i2v_loop (the first frame, the last, both), v2v_head, v2v_tail (33
// frames at the begin or the end), v2v_head_easy, v2v_tail_easy (65 frames). An autoencoder that is `causal` in time makes
// a latent frame of the first frame and one of each four more; the frames that are given are encoded on their own, so that
// no latent tells of those that follow. One that is not makes a latent frame of each four, and v2v takes slices.
#include <string>
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::models::opensora {

struct ConditionWeight {
  std::string kind;
  double weight;  ///< of its draw, relative to the others
};

/// Those that a clip of that many latent frames is long enough for, in the same order. The program drops them from the
/// settings of its whole process; here each clip has its own.
std::vector<ConditionWeight> fitting(const std::vector<ConditionWeight>& weights, int64_t latent_frames, bool causal);

/// The kind in whose share of the weights `u` falls. Throws UserError (usage) where there is none.
std::string chosen(const std::vector<ConditionWeight>& weights, double u);

/// Frames of a clip that are given, and the latent frames that they become.
struct GivenFrames {
  int64_t begin, count;  ///< of the clip, encoded on their own; count 0: a slice of the clip's latent
  int64_t at, latents;
};
/// Throws UserError (usage) for an unknown kind.
std::vector<GivenFrames> given_frames(const std::string& kind, int64_t frames, int64_t latent_frames, bool causal);

/// latent [C, f, h, w] of the whole clip, and of each of the given frames that has a count its own [C, latents, h, w] ->
/// [1 + C, f, h, w]: the mask, which is 1 where frames are given, and these, zero elsewhere.
at::Tensor condition(const at::Tensor& latent, const std::vector<GivenFrames>& given,
                     const std::vector<at::Tensor>& pieces);

/// The same for a video that is sampled: `references` are latents of clips or pictures, one, or two of i2v_loop. Pictures
/// (f = 1), and videos without a reference, have none.
at::Tensor reference_condition(const std::string& kind, at::IntArrayRef latent_shape,
                               const std::vector<at::Tensor>& references, bool causal);

}  // namespace tessera::models::opensora
