#pragma once
// Wan's autoencoders as two lists of layers. Everything else follows from them: parameters, names, the pass over a
// chunk, its memory.
//
//   for (const Layer& layer : encoder_layers(config)) x = pass.apply(layer, x);      // wan_pass.h
#include <string>
#include <vector>

#include "tessera/models/vae/vae_weights.h"
#include "tessera/models/vae/wan_config.h"

namespace tessera::models::wan_vae {

struct Layer {
  enum class Kind {
    patchify,    ///< squares of pixels to channels, and back
    unpatchify,  //
    conv,        ///< causal 3x3x3
    pointwise,   ///< 1x1x1
    residual,    ///< norm, SiLU, conv, norm, SiLU, conv, added to the input (1x1x1 when the channels differ)
    attention,   ///< within each frame, one head
    down,        ///< half the height and width; `temporal`: then half the time
    up,          ///< `temporal`: twice the time; then twice the height and width
    head,        ///< norm, SiLU, conv
    // Wan 2.2: each level has a shortcut from its input to its output.
    average,  ///< keeps its input, averaged to the shape of the level's output: over `scale` x `scale` pixels and,
              ///< where `temporal`, over 2 frames
    join,     ///< adds what `average` kept
    keep,     ///< keeps its input
    repeat,   ///< adds what `keep` kept, repeated to the shape of the level's output
  };
  Kind kind;
  std::string name;  ///< official prefix of its parameters' names
  int64_t in, out;   ///< channels
  bool temporal = false;
  int64_t scale = 1;  ///< of patchify, unpatchify, average and repeat: pixels along a side
};

std::vector<Layer> encoder_layers(const Config& config);  ///< [3, ..] to mean and log variance [2 * z_dim, ..]
std::vector<Layer> decoder_layers(const Config& config);  ///< [z_dim, ..] to [3, ..]

std::vector<Parameter> parameters(const Config& config);

}  // namespace tessera::models::wan_vae
