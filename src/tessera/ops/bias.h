#pragma once
// The gradient of a bias: of a linear, and of a sum over ranks that a bias is added to (engine/parallel/tensor.h).
#include "tessera/ops/weight.h"

namespace tessera::ops {

/// db (+)= the sum of dy's rows [T, out], fp32 or of 16 bits, into the site's fp32 gradient, which is defined. Each
/// thread takes some columns, so the order of the sum is always the same.
void bias_gradient(const at::Tensor& dy, WeightSite& bias);

}  // namespace tessera::ops
