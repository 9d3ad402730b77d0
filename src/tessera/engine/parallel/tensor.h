#pragma once
// Tensor parallelism: the ranks of tp share the features of a unit's linears and the heads of its attention. Tokens
// rest in shares between them (plan/token_shares.h, tp innermost): a linear cut by rows gathers the tokens of the
// place, one cut by columns leaves a sum over the ranks, of which each rank keeps the rows of its own tokens
// (Megatron-LM's sequence parallelism, Korthikanti et al. 2022, with shares of any size).
//
//   Tensor all = gather_place(x, T, parallel);                    // [share, d] -> [place, d]
//   Tensor y = sum_to_shares(ops::linear(h, w, nullptr, anchor), T, parallel, bias, anchor);   // [place, d] -> [share,
//   d]
// Rows of 16 bits travel as they are, a rank's part of a sum rounded once by the rank that has it; they are added up in
// fp32 in the order of the ranks, and rounded once more.
#include "tessera/engine/parallel/parallel.h"
#include "tessera/ops/weight.h"

namespace tessera::engine {

/// x [tokens here, d] to those of the place; the gradient is the sum over the ranks, of which each keeps its share.
Tensor gather_place(const Tensor& x, int64_t tokens, const Parallel& parallel);

/// The sum over the ranks of y [tokens of the place, d], of which each keeps the rows that rest there, plus the bias
/// (null: none). `known`: the result, from a pass without a graph: nothing is exchanged, and the values of y are not
/// read.
Tensor sum_to_shares(const Tensor& y, int64_t tokens, const Parallel& parallel, ops::WeightSite* bias,
                     const Tensor& anchor, const Tensor* known = nullptr);

}  // namespace tessera::engine
