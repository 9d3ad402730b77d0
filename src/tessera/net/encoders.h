#pragma once
// A text encoder that is a stack of units, run forward only under the same schedules as a denoiser.
//
//   Batch batch = encoder.pack({ids});                             // ids of each prompt with the end token, unpadded
//   Tensor hidden = run_plain(encoder.units(), weights, batch);    // [T, dim], prompts one after the other
#include <limits>

#include "tessera/net/model.h"

namespace tessera::net {

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  virtual const std::vector<std::unique_ptr<Unit>>& units() const = 0;
  /// Packed prompts; the rows of prompt i are offsets[i] .. offsets[i + 1] of the last unit's output.
  virtual Batch pack(const std::vector<std::vector<int64_t>>& ids) const = 0;
  virtual int64_t dim() const = 0;
  virtual int64_t vocabulary() const = 0;                                              ///< token ids are below it
  virtual int64_t most_tokens() const { return std::numeric_limits<int64_t>::max(); }  ///< of a prompt
  /// The row of a prompt's output that stands for all of it; -1: the encoder has no such row.
  virtual int64_t pooled_row(const std::vector<int64_t>& ids) const {
    static_cast<void>(ids);
    return -1;
  }
  /// Names the architecture and its sizes, part of cache keys. The caller that loads weights adds their identity (file
  /// or seed).
  virtual std::string fingerprint() const = 0;
  /// Native parameter name -> name in another naming ("hf"); identity for "official".
  virtual std::string foreign_name(const std::string& name, const std::string& naming) const = 0;
  /// Deterministic random values of elements [first, first + count), for runs without pretrained weights.
  virtual void initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count,
                          float* out) const = 0;
};

// A frozen audio encoder: its hidden states are the audio conditioning of a denoiser.
//
//   Tensor rows = encoder.rows(wave, 16, 80);                  // wave [N] to [layers, 80, dim], 16 rows a second

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
