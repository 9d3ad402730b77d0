#pragma once
// max(0, x) whose graph keeps the result, which what follows keeps as well, and not x.
//
//   Tensor q = ops::relu(x);
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// x of any shape and dtype; NaN stays NaN. Its gradient is 0 where x is not above 0. Saves the result.
at::Tensor relu(const at::Tensor& x);

}  // namespace tessera::ops
