#pragma once
// The tensor of the frames that Open-Sora 2.0's trainer and sampler give beside the noisy latent: a mask, and latents.
// Which frames those are is in families/frames/given_frames.h.
//
//   sample.extra["cond"] = condition(latent, given_frames("i2v_head", 33, 9, true), {encode(first frame)});
#include "tessera/families/frames/given_frames.h"
#include "tessera/ops/tensor.h"

namespace tessera::diffusion {

/// latent [C, f, h, w] of the whole clip, and of each of the given frames that has a count its own [C, latents, h, w] ->
/// [1 + C, f, h, w]: the mask, which is 1 where frames are given, and these, zero elsewhere.
at::Tensor condition(const at::Tensor& latent, const std::vector<families::GivenFrames>& given,
                     const std::vector<at::Tensor>& pieces);

/// The same for a video that is sampled: `references` are latents of clips or pictures, one, or two of i2v_loop. Pictures
/// (f = 1), and videos without a reference, have none. Throws UserError (input) where a reference is too short.
at::Tensor reference_condition(const std::string& kind, at::IntArrayRef latent_shape,
                               const std::vector<at::Tensor>& references, bool causal);

}  // namespace tessera::diffusion
