#pragma once
// Ring attention: each rank of cp has a block of the tokens, and the blocks of keys and values are passed around the
// ring. Queries attend to the keys of their own samples in every block; partial results are merged exactly by their
// log-sum-exps.
//
//   ops::AttentionResult r = ring_forward({q, k, v}, heads, offsets, parallel);
//   ops::AttentionInputs grads = ring_backward({q, k, v}, d_out, r.lse, delta, heads, offsets, parallel);
//
// [Note: the ring] At ring step i a rank works on the block of the rank i positions before it and sends that block to
// the next rank meanwhile. The backward passes keys and values on in the same way, and after each block its gradients:
// a rank adds its gradients of a block to those that it received. After the last step the sum goes to the block's
// owner, who adds its own. The order of additions is that of the ring, the same in every run. A group of one has one
// step.
//
// Keys and values are sent in their own dtype. Partial results and the gradients on the ring are fp32; results are
// rounded once, at the end.
#include "tessera/engine/parallel/parallel.h"
#include "tessera/ops/ops.h"

namespace tessera::engine {

/// q, k, v [tokens of this rank's block, heads * d]; `offsets` [B+1]: where the samples of the micro-batch start.
ops::AttentionResult ring_forward(const ops::AttentionInputs& in, int64_t heads, const std::vector<int64_t>& offsets,
                                  const Parallel& parallel);

/// lse, delta (ops::attention_delta) [heads, tokens of the block], over all keys.
ops::AttentionInputs ring_backward(const ops::AttentionInputs& in, const Tensor& d_out, const Tensor& lse,
                                   const Tensor& delta, int64_t heads, const std::vector<int64_t>& offsets,
                                   const Parallel& parallel);

}  // namespace tessera::engine
