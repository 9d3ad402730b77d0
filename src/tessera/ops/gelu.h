#pragma once
// GELU in its tanh approximation, on raw rows: x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
#include <cstdint>

#include "tessera/ops/gemm.h"

namespace tessera::ops {

void gelu_forward(float* out, const float* x, int64_t n);                   ///< out may be x
void gelu_backward(float* dx, const float* dy, const float* x, int64_t n);  ///< dx may be dy
/// The same for contiguous tensors of one dtype, fp32 or 16-bit; dx may be dy.
void gelu_backward(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x);
inline void gelu_in_place(float* x, int64_t n) { gelu_forward(x, x, n); }
/// For operands of products: gelu(x) in place of x if `gelu`.
inline Map gelu_map(bool gelu) { return gelu ? gelu_in_place : nullptr; }

}  // namespace tessera::ops
