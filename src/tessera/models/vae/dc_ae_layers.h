#pragma once
// The layers of DC-AE, of pictures and of clips (Open-Sora 2.0's): the same blocks, under the names that their files have,
// with convolutions of two sides or of three.
//
//   std::vector<Layer> encoder = dc_ae::encoder_layers({.stages = ..., .latent_channels = 32, .head_dim = 32, .clips = false});
#include "tessera/models/vae/dc_ae_config.h"
#include "tessera/models/vae/layer_runner.h"

namespace tessera::models::dc_ae {

/// Half of a network.
struct Half {
  std::vector<Stage> stages;  ///< from full resolution down
  int64_t latent_channels, head_dim;
  bool clips;  ///< of frames that see one another, under the names of efficientvit; else of pictures, diffusers' names
};

std::vector<Layer> encoder_layers(const Half& half);  ///< [3, ..] to [latent_channels, ..]
std::vector<Layer> decoder_layers(const Half& half);  ///< and back

}  // namespace tessera::models::dc_ae
