#pragma once
// The facts that travel with a micro-batch's tokens: whose they are, where each sample starts, and their positions.
//
//   for (size_t s = 0; s + 1 < tokens.offsets.size(); ++s) tokens.offsets[s];      // where sample s starts
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::net {

using at::Tensor;

/// Tokens that go with a signal in time, frame by frame: sound. They lie together in each sample, and others may
/// follow.
struct FrameTokens {
  std::vector<int64_t> clips;                  ///< frames of each sample's signal
  std::vector<std::array<int64_t, 2>> ranges;  ///< [begin, end) of those tokens in each sample
  std::vector<int64_t> offsets;                ///< [N+1] where each of N frames starts, counted over the ranges
  std::vector<int64_t> context_offsets;        ///< [N+1] where each frame's rows of the signal start
  Tensor rows;                                 ///< int32: the frame of each of those tokens
};

/// Facts that travel with the tokens of a packed micro-batch: T tokens of B samples, one after the other. Ranks may
/// share a sequence: then only the tokens [begin, end) are here, in x and in every table, while offsets stay those of
/// the whole micro-batch (engine/parallel/slice.h cuts).
struct Tokens {
  std::vector<int64_t> offsets;          ///< [B+1] where each sample's tokens start
  std::vector<int64_t> context_offsets;  ///< [B+1] where each sample's context rows start
  std::vector<int64_t> image_offsets;    ///< [B+1] where each sample's image rows start; empty: there are none
  Tensor rows;                           ///< [T] int32: modulation row of each token
  Tensor cos, sin;                       ///< [T, d_h/2] fp32: rotary table at each token's position; where ranks of tp
                                         ///< share heads, of all tokens that these ranks have together
  FrameTokens frames;                    ///< of models that hear
  int64_t begin = 0, end = -1;           ///< the tokens that are here; -1: to the last
  std::vector<uint64_t> samples = {};  ///< [B] what the random numbers of each sample are keyed by; empty: not training
  uint64_t step = 0;                   ///< the training step, of the same keys

  int64_t total() const { return offsets.empty() ? 0 : offsets.back(); }
  int64_t count() const { return (end < 0 ? total() : end) - begin; }  ///< tokens here
  bool cut() const { return end >= 0; }
  /// [B+1] where each sample's tokens start among those that are here; a sample may have none of them.
  std::vector<int64_t> local_offsets() const { return local_offsets(begin, begin + count()); }
  /// The same among the tokens [first, last).
  std::vector<int64_t> local_offsets(int64_t first, int64_t last) const {
    std::vector<int64_t> local;
    for (int64_t at : offsets) local.push_back(std::clamp<int64_t>(at - first, 0, last - first));
    return local;
  }
  /// Tokens here times all tokens of their sample, summed: what self-attention grows with.
  double pairs() const {
    const std::vector<int64_t> local = local_offsets();
    double sum = 0;
    for (size_t s = 0; s + 1 < offsets.size(); ++s)
      sum += static_cast<double>(local[s + 1] - local[s]) * static_cast<double>(offsets[s + 1] - offsets[s]);
    return sum;
  }
};

}  // namespace tessera::net
