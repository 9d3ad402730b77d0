#pragma once
// Runs one clip, or one tile of it, through a list of layers.
//
//   Tensor moments = run_layers(encoder_layers(config), config.groups, weights, pixels);      // [3, F, H, W] -> [2C, f, h, w]
//
// Norms are over all frames, so a clip is not coded in chunks as Wan's autoencoders do. Convolutions are: a chunk of
// frames at a time (feature_map.h).
#include "tessera/models/vae/feature_map.h"
#include "tessera/models/vae/hunyuan_layers.h"
#include "tessera/models/vae/pass_work.h"

namespace tessera::models::hunyuan_vae {

/// x [C, F, H, W] fp32, with the C of the first layer -> [C of the last layer, ...]. On meta tensors it allocates the
/// bytes of the same pass on a CPU, including those of oneDNN's convolutions.
Tensor run_layers(const std::vector<Layer>& layers, int64_t groups, const net::WeightMap& weights, const Tensor& x,
                  int64_t chunk = kMapChunk);

/// What the encoder's pass over a clip of so many pixels does.
void add_work(const std::vector<Layer>& encoder, int64_t frames, int64_t height, int64_t width, PassWork& work);

}  // namespace tessera::models::hunyuan_vae
