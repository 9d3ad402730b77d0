#pragma once
// A convolution over rows that ranks share: the rows around a rank's own that it reaches (a halo), and for each tap the
// row it reads.
//
//   const Reach reach = reach_of(tokens, /*space=*/0, {1, 3, 3}, parallel, /*over_tp=*/true);
//   Tensor y = ops::depthwise(reach_rows(x, reach, parallel), tap_table(reach, tokens, 0, {1, 3, 3}, x), ...);
#include "tessera/engine/parallel/tensor.h"

namespace tessera::engine {

struct Reach {
  std::vector<plan::TokenRange> rows;  ///< of each rank that shares them, counted over the space
  int self = 0;
  int64_t total = 0;     ///< rows of the space
  int64_t farthest = 0;  ///< rows that a tap is away, before and behind
  bool over_tp = true;   ///< shared by the ranks of cp x sp x tp, or by their places
  SamplePart part = kWholeSample;
  plan::TokenRange own() const { return rows[static_cast<size_t>(self)]; }
  plan::TokenRange wide() const;  ///< with what is reached
};

/// Throws InternalError for a space without a grid and for even kernels. `parallel` null: all rows are here.
Reach reach_of(const net::Tokens& tokens, int space, const std::array<int64_t, 3>& kernel, const Parallel* parallel,
               bool over_tp);

/// x [own rows, D] to [wide rows, D]; the gradient goes back to the rows' owners, who add it up in the ranks' order.
Tensor reach_rows(const Tensor& x, const Reach& reach, const Parallel* parallel);

/// [taps, own rows] int32: the row of the wide ones that a tap reads, -1 outside of the grid; on the device of `like`.
Tensor tap_table(const Reach& reach, const net::Tokens& tokens, int space, const std::array<int64_t, 3>& kernel,
                 const Tensor& like);

}  // namespace tessera::engine
