#pragma once
// Open-Sora 1.3's autoencoder as two lists of layers, from which its parameters and the pass over a piece follow.
//
//   for (const Layer& layer : encoder_layers(config)) x = pass.apply(layer, x);      // opensora13_pass.h
#include "tessera/models/vae/opensora13_config.h"
#include "tessera/models/vae/vae_weights.h"

namespace tessera::models::opensora13_vae {

struct Layer {
  enum class Kind {
    conv,       ///< causal 3x3x3
    residual,   ///< norm, SiLU, conv, norm, SiLU, conv, added to the input (1x1x1 where the channels differ)
    attention,  ///< norm, one head over all cells of a piece: each sees those before it, added to the input
    down,       ///< conv of half the height and width, 3x3 of each frame
    down_time,  ///< conv of half the height, width and frames
    up,         ///< cells are repeated, then a 3x3 convolution of each frame
    up_time,    ///< cells and frames are repeated; two convolutions, each normalised and activated after it, are added
    head,       ///< norm, SiLU, conv
  };
  Kind kind;
  std::string name;       ///< prefix of its parameters' names; of a convolution
  int64_t in, out;        ///< channels
  std::string norm = {};  ///< of a head
};

std::vector<Layer> encoder_layers(
    const Config& config);  ///< [3, ..] to mean and log variance [2 * latent_channels, ..]
/// [latent_channels, f, ..] to [3, 4f, ..], of which the first three frames are no part of the clip.
std::vector<Layer> decoder_layers(const Config& config);

std::vector<Parameter> parameters(const Config& config);

}  // namespace tessera::models::opensora13_vae
