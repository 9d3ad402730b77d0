#pragma once
// Runs pictures, or a piece of a clip in time, through a list of layers.
//
//   Tensor moments = run_layers(picture_encoder(config), picture_norms(config), weights, frame);    // [3, 1, H, W] -> [2C, 1, h, w]
//   Tensor coded = run_layers(time_encoder(config), time_norms(config), weights, latents);          // [C, 20, h, w] -> [2C, 5, h, w]
#include "tessera/models/vae/feature_map.h"
#include "tessera/models/vae/opensora12_layers.h"
#include "tessera/models/vae/pass_work.h"

namespace tessera::models::opensora12_vae {

/// The norms of a list of layers.
struct Norms {
  int64_t groups;
  double eps;
};
inline Norms picture_norms(const Config& config) { return {config.groups, 1e-6}; }
inline Norms time_norms(const Config& config) { return {config.time_groups, 1e-5}; }

/// x [C, F, H, W] fp32, with the C of the first layer -> [C of the last layer, ...]; of pictures one frame, as norms are
/// over all frames. On meta tensors it allocates the bytes of the same pass on a CPU.
Tensor run_layers(const std::vector<Layer>& layers, const Norms& norms, const net::WeightMap& weights, const Tensor& x,
                  int64_t chunk = kMapChunk);

/// What an encoder's pass over so many frames of that size does.
void add_work(const std::vector<Layer>& encoder, int64_t frames, int64_t height, int64_t width, PassWork& work);

}  // namespace tessera::models::opensora12_vae
