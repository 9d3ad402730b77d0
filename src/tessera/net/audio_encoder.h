#pragma once
// A frozen encoder of sound: its hidden states are what a denoiser with an audio input takes.
//
//   Tensor rows = encoder.rows(wave, 16, 80);                  // wave [N]; [layers, 80, dim], 16 a second
#include "tessera/net/model.h"

namespace tessera::net {

/// What is known without its weights.
struct AudioSizes {
  int64_t dim = 0;      ///< of a hidden state
  int64_t layers = 0;   ///< hidden states of a moment: the encoder's input and each layer's
  int sample_rate = 0;  ///< of the sound it takes, Hz
};

class AudioEncoder {
 public:
  virtual ~AudioEncoder() = default;
  virtual AudioSizes sizes() const = 0;
  /// Hidden states at `count` moments, 1 / fps seconds apart from the beginning of the mono wave [N] on: [layers, count,
  /// dim], zeros where the sound has ended. Throws UserError (input) for a wave too short for one.
  virtual Tensor rows(const Tensor& wave, double fps, int64_t count) const = 0;
};

}  // namespace tessera::net
