#pragma once
// Tensor parallelism: the ranks of tp share the features of a unit's linears and the heads of its attention. Tokens
// are sharded between linears (plan/token_shares.h, tp innermost): a column-parallel linear all-gathers the tokens of
// the tp group, a row-parallel one reduce-scatters its output along them (Megatron-LM's sequence parallelism,
// Korthikanti et al. 2022, with shares of any size).
//
//   const TpGroupRows rows = tp_group_rows(tokens, /*space=*/0, parallel);
//   Tensor all = gather_over_tp(x, rows, parallel);                                      // [share, d] -> [group, d]
//   Tensor y = sum_to_shares(ops::linear(h, w, nullptr, anchor), rows, parallel, bias, anchor);       // and back
//
// 16-bit rows are sent in 16 bits: each rank rounds its summand once. The sum is in fp32 and in rank order, and is
// rounded once more.
#include "tessera/engine/parallel/parallel.h"
#include "tessera/net/tokens.h"
#include "tessera/ops/weight.h"

namespace tessera::engine {

/// How the ranks of a tp group share the rows of a space.
struct TpGroupRows {
  std::vector<int64_t> counts;  ///< by tp_rank; 0 is possible for a space that is part of the tokens
  SamplePart part = kWholeSample;
  int64_t total() const;
};
TpGroupRows tp_group_rows(const net::Tokens& tokens, int space, const Parallel& parallel);
/// The part of each sample's tokens that a space is. Throws InternalError if samples differ in it.
SamplePart part_of(const net::Tokens& tokens, int space);

/// x [rows here, d] to the rows of the tp group. The gradient is summed over the ranks, and each keeps its share.
Tensor gather_over_tp(const Tensor& x, const TpGroupRows& rows, const Parallel& parallel);

/// Sums y [rows of the tp group, d] over the ranks and adds the bias (null: none); each rank keeps its share of the
/// rows. `known`: the result of a forward without a graph; then nothing is sent, and the values of y are not read.
Tensor sum_to_shares(const Tensor& y, const TpGroupRows& rows, const Parallel& parallel, ops::WeightSite* bias,
                     const Tensor& anchor, const Tensor* known = nullptr);

}  // namespace tessera::engine
