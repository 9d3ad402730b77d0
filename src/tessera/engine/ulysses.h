#pragma once
// Ulysses: from some tokens of all heads to all tokens of some heads, and back, over the ranks of sp.
//
//   HeadsUnderWay sent = scatter_heads(q, T, parallel);     // [t, H * d] -> [block, H / sp * d]
//   ...                                                     // computed while they travel
//   Tensor wide = sent.arrive();
//   Tensor out = gather_heads(wide, T, parallel).arrive();  // and back
//
// Each is the inverse and the transpose of the other.
#include <ATen/core/ivalue.h>

#include <optional>

#include "tessera/engine/parallel.h"

namespace tessera::engine {

/// One tensor that the ranks of sp exchange. What is sent and received stays until it has arrived.
class HeadsUnderWay {
 public:
  /// Where a scattered tensor will be; its values are there after arrive().
  const Tensor& place() const { return received_; }
  /// Waits; the result.
  Tensor arrive();

 private:
  friend HeadsUnderWay scatter_heads(const Tensor&, int64_t, const Parallel&);
  friend HeadsUnderWay gather_heads(const Tensor&, int64_t, const Parallel&);
  Tensor sent_, received_;
  bool by_member_ = false;  // received_ is [sp, tokens, width]
  std::unique_ptr<Parallel::Transfer> transfer_;
};

/// Starts: x [tokens here, w] to [tokens of the block, w / sp], the columns of this rank's heads. `tokens`: the number of
/// the whole micro-batch. A group of one returns its input. Under tp, "tokens here" are the tp group's.
HeadsUnderWay scatter_heads(const Tensor& x, int64_t tokens, const Parallel& parallel);

/// Starts: x [tokens of the block, w] to [tokens here, w * sp].
HeadsUnderWay gather_heads(const Tensor& x, int64_t tokens, const Parallel& parallel);

/// Operands of self-attention that are sent while the unit computes the next ones. Their gradients go back the same way:
/// all are sent when attention's backward has them, and each is awaited where the backward of what made it begins.
class SentOperands {
 public:
  /// Starts; what attention is given in the place of x, whose values are there after arrive().
  Tensor send(const Tensor& x, int64_t tokens, const Parallel& parallel);
  /// Sends those of q, k, v that were not, and waits for all, in the order in which they were sent.
  ops::AttentionInputs arrive(const Tensor& q, const Tensor& k, const Tensor& v, int64_t tokens,
                              const Parallel& parallel);
  /// The sizes [tokens here, w] of what was sent in the place of which x is given, or of x.
  std::array<int64_t, 2> sizes(const Tensor& x) const;

  struct Journey : torch::CustomClassHolder {
    std::optional<HeadsUnderWay> there, back;  ///< of the gradient, in a backward
  };

 private:
  struct Sent {
    Tensor wide;
    std::array<int64_t, 2> sizes;
    c10::intrusive_ptr<Journey> journey;
  };
  const Sent* find(const Tensor& wide) const;
  std::vector<Sent> sent_;
};

}  // namespace tessera::engine
