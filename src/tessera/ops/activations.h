#pragma once
// Functions of single elements between products. GELU in its tanh approximation, on raw rows: x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
#include <cstdint>

#include "tessera/ops/gemm.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

void gelu_forward(float* out, const float* x, int64_t n);                   ///< out may be x
void gelu_backward(float* dx, const float* dy, const float* x, int64_t n);  ///< dx may be dy
/// The same for contiguous tensors of one dtype, fp32 or 16-bit; dx may be dy.
void gelu_backward(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x);
inline void gelu_in_place(float* x, int64_t n) { gelu_forward(x, x, n); }
/// For operands of products: gelu(x) in place of x if `gelu`.
inline Map gelu_map(bool gelu) { return gelu ? gelu_in_place : nullptr; }

// max(0, x) whose graph keeps the result, which what follows keeps as well, and not x.
//
//   Tensor q = ops::relu(x);

/// x of any shape and dtype; NaN stays NaN. Its gradient is 0 where x is not above 0. Saves the result.
at::Tensor relu(const at::Tensor& x);

/// x * silu(gate), alike in shape and dtype. Saves both.
at::Tensor silu_glu(const at::Tensor& x, const at::Tensor& gate);

}  // namespace tessera::ops
