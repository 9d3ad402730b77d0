#pragma once
// Runs one picture through a list of DC-AE's layers.
//
//   Tensor latent = run_layers(encoder_layers(config), config.head_dim, weights, pixels);    // [3, H, W] -> [C, h, w]
#include "tessera/models/vae/dc_ae_layers.h"
#include "tessera/models/vae/pass_work.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::dc_ae {

using at::Tensor;

/// x [C, H, W] fp32, with the C of the first layer -> [C of the last layer, ...]. `weights` by diffusers' names. On meta
/// tensors it allocates the bytes of the same pass on a CPU, including those of oneDNN's convolutions.
Tensor run_layers(const std::vector<Layer>& layers, int64_t head_dim, const net::WeightMap& weights, const Tensor& x);

/// What the encoder's pass over a picture of so many pixels does.
void add_work(const std::vector<Layer>& encoder, int64_t head_dim, int64_t height, int64_t width, PassWork& work);

}  // namespace tessera::models::dc_ae
