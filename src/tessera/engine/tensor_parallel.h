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
#include "tessera/engine/parallel.h"
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

// A convolution over rows that ranks share: the halo (rows of other ranks that it reads) and the row that each tap
// reads.
//
//   const Reach reach = reach_of(tokens, /*space=*/0, {1, 3, 3}, parallel, /*over_tp=*/true);
//   Tensor y = ops::depthwise(reach_rows(x, reach, parallel), tap_table(reach, tokens, 0, {1, 3, 3}, x), ...);

struct Reach {
  std::vector<plan::TokenRange> rows;  ///< rows of each rank, counted over the space
  int self = 0;                        ///< index of this rank
  int64_t total = 0;                   ///< rows of the space
  int64_t farthest = 0;                ///< most rows between a tap and the row it is for, before and after
  bool over_tp = true;                 ///< the ranks of cp x sp x tp share the rows; else those of cp x sp
  SamplePart part = kWholeSample;
  plan::TokenRange own() const { return rows[static_cast<size_t>(self)]; }
  plan::TokenRange wide() const;  ///< own rows with the halo
};

/// Throws InternalError for a space without a grid and for even kernels. `parallel` null: all rows are here.
Reach reach_of(const net::Tokens& tokens, int space, const std::array<int64_t, 3>& kernel, const Parallel* parallel,
               bool over_tp);

/// x [own rows, D] to [wide rows, D]. The gradient of the halo goes back to its owners, who sum it in rank order.
Tensor reach_rows(const Tensor& x, const Reach& reach, const Parallel* parallel);

/// [taps, own rows] int32: the wide row that a tap reads, -1 outside the grid; on the host, or without memory as `like`.
Tensor tap_table(const Reach& reach, const net::Tokens& tokens, int space, const std::array<int64_t, 3>& kernel,
                 const Tensor& like);

}  // namespace tessera::engine
