#pragma once
// A convolution over rows that ranks share: the halo (rows of other ranks that it reads) and the row that each tap
// reads.
//
//   const Reach reach = reach_of(tokens, /*space=*/0, {1, 3, 3}, parallel, /*over_tp=*/true);
//   Tensor y = ops::depthwise(reach_rows(x, reach, parallel), tap_table(reach, tokens, 0, {1, 3, 3}, x), ...);
#include "tessera/engine/parallel/tensor.h"

namespace tessera::engine {

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

/// [taps, own rows] int32: the wide row that a tap reads, -1 outside the grid; on the device of `like`.
Tensor tap_table(const Reach& reach, const net::Tokens& tokens, int space, const std::array<int64_t, 3>& kernel,
                 const Tensor& like);

}  // namespace tessera::engine
