#pragma once
// Runs a piece of a clip, or one tile of it, through a list of layers.
//
//   Tensor moments = run_layers(encoder_layers(config), config.groups, weights, pixels);      // [3, 17, H, W] -> [2C, 5, h, w]
#include "tessera/models/vae/feature_map.h"
#include "tessera/models/vae/opensora13_layers.h"
#include "tessera/models/vae/pass_work.h"

namespace tessera::models::opensora13_vae {

/// x [C, F, H, W] fp32, with the C of the first layer -> [C of the last layer, ...]. On meta tensors it allocates the
/// bytes of the same pass on a CPU.
Tensor run_layers(const std::vector<Layer>& layers, int64_t groups, const net::WeightMap& weights, const Tensor& x,
                  int64_t chunk = kMapChunk);

/// What the encoder's pass over a piece of so many pixels does.
void add_work(const std::vector<Layer>& encoder, int64_t frames, int64_t height, int64_t width, PassWork& work);

}  // namespace tessera::models::opensora13_vae
