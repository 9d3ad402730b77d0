#pragma once
// The operators of ops.h in plain ATen with autograd on the weights, as the tests' reference. Any floating dtype; use
// doubles for exact expectations.
//
//   Tensor y = ops::reference::linear(x, w, b);    // y.backward() fills w.grad()
#include <array>
#include <cstdint>

#include "tessera/ops/eight_bit.h"
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

// The formats of bf16.h, blockwise.h and eight_bit.h in slow plain arithmetic from their definitions, as the tests'
// reference.
//
//   EXPECT_EQ(code, reference::nearest_code(DynamicMap::with_sign().values(), x / scale));

/// Index of the value nearest to x, the upper one at ties (differences in fp32, as the reference implementations).
uint8_t nearest_code(const std::array<float, 256>& map, float x);

/// (-1)^sign 2^(exponent - bias) 1.mantissa, from its fields.
float fp8_value(uint8_t code, DType format);
/// The code of the nearest value, the even one at ties; values that would round beyond the largest are NaN or infinity.
uint8_t fp8_code(float x, DType format);

/// The bf16 neighbours of x towards zero and away from it; both are x if bf16 can represent it.
std::array<uint16_t, 2> bf16_neighbours(float x);

}  // namespace tessera::ops::reference
