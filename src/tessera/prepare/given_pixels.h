#pragma once
// Conditions of VideoX-Fun's models from pixels: a clip of which a part is given, by a mask; a picture as the first frame
// of nothing else.
//
//   Tensor y = given_latent(codec, pixels, mask);                     // [4 + C, f, h, w]
//   y = cat({control, in_front(codec.encode(start), f)});             // a model without a mask
//
// Nothing is said by zeros in three places: an absent control or start picture is a latent of zeros, which is not the
// latent of grey; an absent reference is a latent of zeros whose tokens stay; an absent picture of CLIP is features of
// zeros, which the model still embeds.
//
// Where the trainer does otherwise than it means to, ours does what is meant: its script for 2.1 without references stops
// at a name that it never set; one sample of a 5B batch that makes its first frame takes the given first frame from all
// others; a first frame without noise counts in its loss, although nothing tells the model the noise that it is asked for;
// its posterior samples have a deviation in other units than their mean, where ours are the mean.
#include "tessera/net/model.h"

namespace tessera::prepare {

/// What is given of each latent frame's four frames, [4, f, h, w] between 0 and 1: 1 - mask, shrunk with the values
/// between, the first latent frame by itself. mask [1, F, H, W]: 1 is to be made. Wan's own masks are 0 and 1.
at::Tensor given_channels(const at::Tensor& mask, const std::array<int64_t, 4>& latent);

/// y: given_channels() and the latent of the clip with grey in place of what is to be made. pixels [3, F, H, W] in
/// [-1, 1]. `nothing_is_zero`: where all is to be made y is zeros, else the latent of grey.
at::Tensor given_latent(const net::VideoCodec& codec, const at::Tensor& pixels, const at::Tensor& mask,
                        bool nothing_is_zero = true);

/// A latent frame [C, 1, h, w] in front of zeros, `frames` in all.
at::Tensor in_front(const at::Tensor& latent, int64_t frames);

/// Of a model with a timestep a token: which of its latent's cells are made, [1, f, h, w]; those of all frames but the
/// first are. Times the timestep it is that of each cell.
at::Tensor made_cells(const at::Tensor& mask, const std::array<int64_t, 4>& latent);

/// The latent with its first frame replaced by that of `given` where the first frame is given whole.
bool gives_first(const at::Tensor& cells);
at::Tensor with_first(const at::Tensor& latent, const at::Tensor& given, const at::Tensor& cells);

}  // namespace tessera::prepare
