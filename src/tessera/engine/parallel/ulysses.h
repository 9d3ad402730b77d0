#pragma once
// Ulysses: from some tokens of all heads to all tokens of some heads, and back, over the ranks of sp.
//
//   std::vector<Tensor> wide = scatter_heads({q, k, v}, T, parallel);    // [t, H * d] -> [block, H / sp * d]
//   Tensor out = gather_heads({wide_out}, T, parallel)[0];               // and back
//
// Each is the inverse and the transpose of the other. All tensors travel in one exchange, each in its own type: of fp32
// and of 16 bits together the fp32 ones come first.
#include "tessera/engine/parallel/parallel.h"

namespace tessera::engine {

/// Tensors [tokens of this place, w_i] to [tokens of the block, w_i / sp]: of each token the columns of this rank's
/// heads. `tokens`: of the whole micro-batch. A group of one hands them through.
std::vector<Tensor> scatter_heads(const std::vector<Tensor>& tensors, int64_t tokens, const Parallel& parallel);

/// Tensors [tokens of the block, w_i] to [tokens of this place, w_i * sp].
std::vector<Tensor> gather_heads(const std::vector<Tensor>& tensors, int64_t tokens, const Parallel& parallel);

}  // namespace tessera::engine
