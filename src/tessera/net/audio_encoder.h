#pragma once
// A frozen audio encoder: its hidden states are the audio conditioning of a denoiser.
//
//   Tensor rows = encoder.rows(wave, 16, 80);                  // wave [N] to [layers, 80, dim], 16 rows a second
#include "tessera/net/model.h"

namespace tessera::net {

/// Sizes that are known without the weights.
struct AudioSizes {
  int64_t dim = 0;      ///< of a hidden state
  int64_t layers = 0;   ///< hidden states per row: the encoder's input and each layer's output
  int sample_rate = 0;  ///< of its input, Hz
};

class AudioEncoder {
 public:
  virtual ~AudioEncoder() = default;
  virtual AudioSizes sizes() const = 0;
  /// Hidden states at `count` times, 1 / fps seconds apart from the start of the mono wave [N]: [layers, count, dim],
  /// zeros after the end of the wave. Throws UserError (input) for a wave too short for one hidden state.
  virtual Tensor rows(const Tensor& wave, double fps, int64_t count) const = 0;
};

}  // namespace tessera::net
