#pragma once
// The tensor of the frames that Open-Sora 2.0's trainer and sampler give beside the noisy latent: a mask, and latents.
// Which frames those are is in families/frames/given_frames.h. 1.3's are kept apart: extras mask_index, cond, y_null.
//
//   sample.extra["cond"] = condition(latent, given_frames("i2v_head", 33, 9, true), {encode(first frame)});
#include "tessera/families/frames/given_frames.h"
#include "tessera/net/model.h"
#include "tessera/ops/tensor.h"

namespace tessera::diffusion {

/// Whether a model takes given frames as 1.3's do: extra "cond" [C, f, h, w] and "mask_index" [n], the frames that it
/// gives, which read "y_null" in place of the caption. These models take frames without noise (x_mask) as well, and
/// all others that are given frames read `condition` below.
inline bool reads_beside(const net::Conditions& takes) { return takes.given_frames && takes.frame_masks; }

/// [n] int64: the frames that `given` marks.
at::Tensor frame_index(const std::vector<char>& given);
/// What such a model reads where the frames `index` of a clip are given: the caption, and their latents, which are
/// undefined where they are left out. `drop` is of families::drop_kinds().
struct BesideInput {
  at::Tensor context;  ///< `caption` or `null`
  at::Tensor cond;     ///< [C, f, h, w]: `latent` in these frames, zero elsewhere
};
BesideInput beside_input(const std::string& drop, const at::Tensor& latent, const at::Tensor& index,
                         const at::Tensor& caption, const at::Tensor& null);

/// latent [C, f, h, w] of the whole clip, and of each of the given frames that has a count its own [C, latents, h, w] ->
/// [1 + C, f, h, w]: the mask, which is 1 where frames are given, and these, zero elsewhere.
at::Tensor condition(const at::Tensor& latent, const std::vector<families::GivenFrames>& given,
                     const std::vector<at::Tensor>& pieces);

/// The same for a video that is sampled: `references` are latents of clips or pictures, one, or two of i2v_loop. Pictures
/// (f = 1), and videos without a reference, have none. Throws UserError (input) where a reference is too short.
at::Tensor reference_condition(const std::string& kind, at::IntArrayRef latent_shape,
                               const std::vector<at::Tensor>& references, bool causal);

}  // namespace tessera::diffusion
