#pragma once
// Ulysses: from some tokens of all heads to all tokens of some heads, and back, over the ranks of sp.
//
//   std::vector<Tensor> wide = scatter_heads({q, k, v}, T, parallel);    // [t, H * d] -> [block, H / sp * d]
//   Tensor out = gather_heads({wide_out}, T, parallel)[0];               // and back
//
// Each is the inverse and the transpose of the other. One exchange sends all tensors, each in its own dtype, fp32 ones
// before 16-bit ones.
#include "tessera/engine/parallel/parallel.h"

namespace tessera::engine {

/// Tensors [tokens here, w_i] to [tokens of the block, w_i / sp]: the columns of this rank's heads. `tokens`: the
/// number of the whole micro-batch. A group of one returns its input. Under tp, "tokens here" are the tp group's.
std::vector<Tensor> scatter_heads(const std::vector<Tensor>& tensors, int64_t tokens, const Parallel& parallel);

/// Tensors [tokens of the block, w_i] to [tokens here, w_i * sp].
std::vector<Tensor> gather_heads(const std::vector<Tensor>& tensors, int64_t tokens, const Parallel& parallel);

}  // namespace tessera::engine
