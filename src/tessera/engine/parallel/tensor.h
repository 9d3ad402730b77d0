#pragma once
// Tensor parallelism: the ranks of tp share the features of a unit's linears and the heads of its attention. Tokens
// rest in shares between them (plan/token_shares.h, tp innermost): a linear cut by rows gathers the tokens of the
// place, one cut by columns leaves a sum over the ranks, of which each rank keeps the rows of its own tokens
// (Megatron-LM's sequence parallelism, Korthikanti et al. 2022, with shares of any size).
//
//   const TpGroupRows rows = tp_group_rows(tokens, /*space=*/0, parallel);
//   Tensor all = gather_over_tp(x, rows, parallel);                                           // [share, d] -> [place, d]
//   Tensor y = sum_to_shares(ops::linear(h, w, nullptr, anchor), rows, parallel, bias, anchor);          // and back
//
// Rows of 16 bits travel as they are, a rank's part of a sum rounded once by the rank that has it; they are added up in
// fp32 in the order of the ranks, and rounded once more.
#include "tessera/engine/parallel/parallel.h"
#include "tessera/net/tokens.h"
#include "tessera/ops/weight.h"

namespace tessera::engine {

/// How the ranks of tp share a space's rows of one place.
struct TpGroupRows {
  std::vector<int64_t> counts;  ///< by tp_rank; some may have none, of a space that is part of the tokens
  SamplePart part = kWholeSample;
  int64_t total() const;
};
TpGroupRows tp_group_rows(const net::Tokens& tokens, int space, const Parallel& parallel);
/// Which of each sample's tokens a space is. Throws InternalError where samples differ.
SamplePart part_of(const net::Tokens& tokens, int space);

/// x [rows here, d] to those of the place; the gradient is the sum over the ranks, of which each keeps its share.
Tensor gather_over_tp(const Tensor& x, const TpGroupRows& rows, const Parallel& parallel);

/// The sum over the ranks of y [rows of the place, d], of which each keeps the rows that rest there, plus the bias
/// (null: none). `known`: the result, from a pass without a graph: nothing is exchanged, and the values of y are not
/// read.
Tensor sum_to_shares(const Tensor& y, const TpGroupRows& rows, const Parallel& parallel, ops::WeightSite* bias,
                     const Tensor& anchor, const Tensor* known = nullptr);

}  // namespace tessera::engine
