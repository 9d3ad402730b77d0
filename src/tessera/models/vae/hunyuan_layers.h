#pragma once
// HunyuanVideo's autoencoder as two lists of layers, from which its parameters and the pass over a clip follow.
//
//   for (const Layer& layer : encoder_layers(config)) x = pass.apply(layer, x);      // hunyuan_pass.h
#include "tessera/models/vae/hunyuan_config.h"
#include "tessera/models/vae/vae_weights.h"

namespace tessera::models::hunyuan_vae {

struct Layer {
  enum class Kind {
    conv,       ///< causal 3x3x3
    pointwise,  ///< 1x1x1
    residual,   ///< norm, SiLU, conv, norm, SiLU, conv, added to the input (1x1x1 where the channels differ)
    attention,  ///< norm, one head over all cells of a frame and of those before it, added to the input
    down,       ///< conv of half the height and width, and where `temporal` of half the frames after the first
    up,         ///< the inverse: cells are repeated, then conv; the first frame is never repeated in time
    head,       ///< norm, SiLU, conv
  };
  Kind kind;
  std::string name;  ///< prefix of its parameters' names
  int64_t in, out;   ///< channels
  bool temporal = false;
};

std::vector<Layer> encoder_layers(
    const Config& config);  ///< [3, ..] to mean and log variance [2 * latent_channels, ..]
std::vector<Layer> decoder_layers(const Config& config);  ///< [latent_channels, ..] to [3, ..]

std::vector<Parameter> parameters(const Config& config);

}  // namespace tessera::models::hunyuan_vae
