#pragma once
// Wan 2.1's autoencoder as two lists of layers. Everything else follows from them: parameters, names, the pass over a
// chunk, its memory.
//
//   for (const Layer& layer : encoder_layers(config)) x = pass.apply(layer, x);      // wan21_pass.h
#include "tessera/models/vae/wan21_config.h"

namespace tessera::models::wan21 {

struct Layer {
  enum class Kind {
    conv,       ///< causal 3x3x3
    pointwise,  ///< 1x1x1
    residual,   ///< norm, SiLU, conv, norm, SiLU, conv, added to the input (1x1x1 when the channels differ)
    attention,  ///< within each frame, one head
    down,       ///< half the height and width; `temporal`: then half the time
    up,         ///< `temporal`: twice the time; then twice the height and width
    head,       ///< norm, SiLU, conv
  };
  Kind kind;
  std::string name;  ///< official: what its parameters' names begin with
  int64_t in, out;   ///< channels
  bool temporal = false;
};

std::vector<Layer> encoder_layers(const Config& config);  ///< [3, ..] to mean and log variance [2 * z_dim, ..]
std::vector<Layer> decoder_layers(const Config& config);  ///< [z_dim, ..] to [3, ..]

struct Parameter {
  std::string name;  ///< official
  std::vector<int64_t> shape;
};
std::vector<Parameter> parameters(const Config& config);

/// The convolutions of a layer that see frames of earlier chunks: site, channels of what they see, and how many frames
/// of it they remember.
struct Memory {
  std::string site;
  int64_t channels, frames;
};
std::vector<Memory> memories(const Layer& layer);

}  // namespace tessera::models::wan21
