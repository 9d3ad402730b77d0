#pragma once
// DC-AE as two lists of layers, from which its parameters and the pass over a picture follow.
//
//   for (const Layer& layer : encoder_layers(config)) x = apply(layer, x);      // dc_ae_pass.h
#include "tessera/models/vae/dc_ae_config.h"
#include "tessera/models/vae/vae_weights.h"

namespace tessera::models::dc_ae {

struct Layer {
  enum class Kind {
    conv,       ///< 3x3
    residual,   ///< conv, SiLU, conv, norm, added to the input
    attention,  ///< linear attention of two scales, then a gated convolution, each added to its input
    down,       ///< half the height and width: conv of stride 2, added to the pixels' mean in groups of channels
    up,         ///< twice the height and width: conv of repeated pixels, added to channels that become pixels
    squeeze,    ///< conv to the latent, added to the mean of groups of channels
    widen,      ///< conv of the latent, added to its repeated channels
    head,       ///< norm, ReLU, conv
  };
  Kind kind;
  std::string name;  ///< prefix of its parameters' names in diffusers
  int64_t in, out;   ///< channels
};

std::vector<Layer> encoder_layers(const Config& config);  ///< [3, ..] to [latent_channels, ..]
std::vector<Layer> decoder_layers(const Config& config);  ///< and back

std::vector<Parameter> parameters(const Config& config);

}  // namespace tessera::models::dc_ae
