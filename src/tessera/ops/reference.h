#pragma once
// The operators of ops.h in plain ATen with autograd on the weights, as the tests' reference. Any floating dtype; use
// doubles for exact expectations.
//
//   Tensor y = ops::reference::linear(x, w, b);    // y.backward() fills w.grad()
#include "tessera/ops/tensor.h"

namespace tessera::ops::reference {

using at::Tensor;

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b);
Tensor gelu_linear(const Tensor& x, const Tensor& w, const Tensor& b);
/// z = x or gelu_tanh(x); x W^T + b + s (mask * z A^T) B^T. `mask` [T, in] and `magnitude` [out] may be undefined; with
/// a magnitude (m / |W + s B A|) (z (W + s B A)^T) + b, where the row norms have no gradient. `ranks` [T, r] multiplies
/// mask * z A^T.
Tensor lora_linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& a, const Tensor& b, double s,
                   const Tensor& mask, const Tensor& magnitude, bool gelu, const Tensor& ranks = {});
/// What LoKr (`kronecker`) or LoHa add to a weight, without their scale.
Tensor weight_change(const Tensor& p, const Tensor& q, bool kronecker);
Tensor layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, double eps);
Tensor rms_norm(const Tensor& x, const Tensor& w, double eps);
Tensor rms_norm_rope(const Tensor& x, const Tensor& w, const Tensor& cos, const Tensor& sin, int64_t heads, double eps);
Tensor modulated_norm(const Tensor& x, const Tensor& shift, const Tensor& scale, const Tensor& rows, double eps);
Tensor gated_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const Tensor& rows);
Tensor gelu_tanh(const Tensor& x);
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                 const std::vector<int64_t>& q_offsets, const std::vector<int64_t>& k_offsets);
Tensor attention_bias(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads, const Tensor& bias);

}  // namespace tessera::ops::reference
