#pragma once
// The video DC-AE as two lists of layers, from which its parameters and the pass over a clip follow.
//
//   for (const Layer& layer : encoder_layers(config)) x = pass.apply(layer, x);      // dc_ae_video_pass.h
#include "tessera/models/vae/dc_ae_video_config.h"
#include "tessera/models/vae/vae_weights.h"

namespace tessera::models::dc_ae_video {

struct Layer {
  enum class Kind {
    conv,       ///< 3x3x3
    residual,   ///< conv, SiLU, conv, norm, added to the input
    attention,  ///< linear attention of two scales over all cells of all frames, then a gated convolution
    down,       ///< conv of half the height and width, and of half the frames where `temporal`, beside the pixels' mean
    up,         ///< the inverse: cells are repeated, then conv, beside repeated channels as pixels
    squeeze,    ///< conv beside the mean of neighbouring channels
    widen,      ///< conv beside repeated channels
    head,       ///< norm, ReLU, conv
  };
  Kind kind;
  std::string name;       ///< prefix of its parameters' names; of a convolution
  int64_t in, out;        ///< channels
  bool temporal = false;  ///< of a clip; a picture stays one frame
};

std::vector<Layer> encoder_layers(const Config& config);
std::vector<Layer> decoder_layers(const Config& config);

/// Under the names of the release.
std::vector<Parameter> parameters(const Config& config);

}  // namespace tessera::models::dc_ae_video
