#pragma once
// Multiplies a matrix by a number in place.
//
//   scale_in_place(h, alpha / rank);
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// x *= factor, fp32 and contiguous. Does nothing on meta tensors.
void scale_in_place(const at::Tensor& x, double factor);

}  // namespace tessera::ops
