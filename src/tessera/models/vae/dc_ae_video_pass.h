#pragma once
// Runs one clip or picture, or one tile of it, through a list of layers.
//
//   Tensor latent = run_layers(encoder_layers(config), config.head_dim, weights, pixels);      // [3, F, H, W] -> [C, f, h, w]
#include "tessera/models/vae/dc_ae_video_layers.h"
#include "tessera/models/vae/feature_map.h"
#include "tessera/models/vae/pass_work.h"

namespace tessera::models::dc_ae_video {

/// x [C, F, H, W] fp32, with the C of the first layer -> [C of the last layer, ...]; one frame stays one. On meta tensors
/// it allocates the bytes of the same pass on a CPU.
Tensor run_layers(const std::vector<Layer>& layers, int64_t head_dim, const net::WeightMap& weights, const Tensor& x,
                  int64_t chunk = kMapChunk);

/// What the encoder's pass over a clip of so many pixels does.
void add_work(const std::vector<Layer>& encoder, int64_t head_dim, int64_t frames, int64_t height, int64_t width,
              PassWork& work);

}  // namespace tessera::models::dc_ae_video
