#pragma once
// The gradient of a bias: of a linear, and of a bias added after a sum over ranks (engine/parallel/tensor.h).
#include "tessera/ops/weight.h"

namespace tessera::ops {

/// db (+)= the sum of the rows of dy [T, out], fp32 or 16-bit, into the site's fp32 gradient, which must be defined.
/// Each thread sums some columns, so the order of summation is fixed.
void bias_gradient(const at::Tensor& dy, WeightSite& bias);

}  // namespace tessera::ops
