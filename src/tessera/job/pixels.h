#pragma once
// Pixels as an autoencoder computes with them, and as bytes of a video.
//
//   data::write_mp4(file, to_frames(codec.decode(latent), fps));
#include "tessera/data/video.h"
#include "tessera/torch_headers.h"

namespace tessera::job {

/// [3, F, H, W] in [-1, 1], clamped, to bytes.
data::Frames to_frames(const at::Tensor& pixels, double fps);
/// And back.
at::Tensor to_pixels(const data::Frames& frames);

}  // namespace tessera::job
