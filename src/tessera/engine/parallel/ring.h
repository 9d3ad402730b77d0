#pragma once
// Ring attention: each rank of cp has a block of the tokens, and the blocks of keys and values travel round. Queries
// meet the keys of their own samples wherever those are; results are merged exactly by their log-sum-exps.
//
//   ops::AttentionResult r = ring_forward({q, k, v}, heads, offsets, parallel);
//   ops::AttentionInputs grads = ring_backward({q, k, v}, d_out, r.lse, delta, heads, offsets, parallel);
//
// [Note: the ring] At turn i a rank works on the block of the rank i places before it, while that block already travels
// on to the next. Backward passes keys and values on in the same way, and behind each block its gradients: what a rank
// computes for a block is added to what came, and after the last turn the sum goes home, where the block's own share
// waits. The order of additions is that of the ring, the same every time. A group of one has one turn.
//
// Keys and values travel in their own type. What is merged or added up over turns is fp32, and so are the gradients on
// their way, to which every rank adds; results are rounded once, when they are done.
#include "tessera/engine/parallel/parallel.h"
#include "tessera/ops/ops.h"

namespace tessera::engine {

/// q, k, v [tokens of this rank's block, heads * d]; `offsets` [B+1]: where the samples of the micro-batch start.
ops::AttentionResult ring_forward(const ops::AttentionInputs& in, int64_t heads, const std::vector<int64_t>& offsets,
                                  const Parallel& parallel);

/// lse, delta [heads, tokens of the block]: of all keys (ops::attention_delta).
ops::AttentionInputs ring_backward(const ops::AttentionInputs& in, const Tensor& d_out, const Tensor& lse,
                                   const Tensor& delta, int64_t heads, const std::vector<int64_t>& offsets,
                                   const Parallel& parallel);

}  // namespace tessera::engine
