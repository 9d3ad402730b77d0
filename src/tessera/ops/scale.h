#pragma once
// A matrix times a number, where it lies.
//
//   scale_in_place(h, alpha / rank);
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// x *= factor, fp32 and contiguous. Meta tensors: does nothing.
void scale_in_place(const at::Tensor& x, double factor);

}  // namespace tessera::ops
