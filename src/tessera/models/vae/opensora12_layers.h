#pragma once
// Open-Sora 1.2's autoencoder as four lists of layers, from which its parameters and the passes follow.
//
//   for (const Layer& layer : picture_encoder(config)) x = apply(maps, layer, x);      // opensora12_pass.h
#include "tessera/models/vae/opensora12_config.h"
#include "tessera/models/vae/vae_weights.h"

namespace tessera::models::opensora12_vae {

struct Layer {
  enum class Kind {
    conv,        ///< 3x3, over time 3x3x3 and causal
    pointwise,   ///< 1x1
    residual,    ///< norm, SiLU, conv, norm, SiLU, conv, added to the input (1x1 where the channels differ)
    attention,   ///< norm, one head over all cells of a picture, added to the input
    down,        ///< conv of half the height and width
    up,          ///< cells are repeated, then conv
    shrink,      ///< conv of half the frames
    stretch,     ///< conv to twice the channels, of which pairs become two frames
    head,        ///< norm, SiLU, conv
    point_head,  ///< norm, SiLU, 1x1x1
  };
  Kind kind;
  std::string name;       ///< prefix of its parameters' names; of a convolution
  int64_t in, out;        ///< channels
  std::string norm = {};  ///< of a head
};

std::vector<Layer> picture_encoder(const Config& config);  ///< [3, ..] to mean and log variance [2C, ..]
std::vector<Layer> picture_decoder(const Config& config);  ///< [C, ..] to [3, ..]
std::vector<Layer> time_encoder(const Config& config);     ///< [C, ..] to mean and log variance [2C, ..]
std::vector<Layer> time_decoder(const Config& config);     ///< [C, ..] to [C, ..]

/// Of all four lists.
std::vector<Parameter> parameters(const Config& config);

}  // namespace tessera::models::opensora12_vae
