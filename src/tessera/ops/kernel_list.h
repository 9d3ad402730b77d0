#pragma once
// The functions of ops::Kernels that every table has, in its order, so that a table declares and fills them without repeating what they are.
//
//   namespace cpu { TESSERA_EACH_KERNEL(TESSERA_DECLARE_KERNEL) }     // Tensor linear(const Tensor& x, ...); and so on
#include <type_traits>

#include "tessera/ops/kernels.h"

// clang-format off
#define TESSERA_EACH_KERNEL(each) \
  each(linear) each(linear_input_gradient) each(add_linear_input_gradient) each(linear_weight_gradient) each(gelu_linear_gradients) each(bias_gradient) \
  each(fp8_lines) each(fp8_product) each(fp8_product_into) each(frozen_matrix) \
  each(frozen_linear) each(frozen_linear_backward) each(adapted_squares) each(layer_norm) \
  each(layer_norm_backward) each(row_squares) each(rms_norm) \
  each(rms_norm_dots) each(rms_norm_backward) each(sum) each(sum_backward) each(sum_of_halves) \
  each(gated_residual) each(gated_residual_backward) each(gelu_tanh) \
  each(gelu_tanh_gradient) each(add_error) each(dot) each(rope) each(depthwise) each(depthwise_input_gradient) \
  each(depthwise_weight_gradient) each(unfold) each(unfold_gradient) each(embedding_gradient) \
  each(drop_rows) each(attention) each(attention_backward) each(attention_delta) each(merge_attention) each(linear_attention_states) \
  each(linear_attention_states_backward) each(linear_attention_result) \
  each(linear_attention_result_backward) each(silu_glu) each(silu_glu_gradients)
// clang-format on

/// Declares a function of this name with the signature of the table's.
#define TESSERA_DECLARE_KERNEL(name) std::remove_pointer_t<decltype(Kernels::name)> name;

namespace tessera::ops {

#define TESSERA_COUNT_KERNEL(name) +1
static_assert(sizeof(Kernels) ==
                  sizeof(const char*) + (2 TESSERA_EACH_KERNEL(TESSERA_COUNT_KERNEL)) * sizeof(void (*)()),
              "a function of Kernels is missing in TESSERA_EACH_KERNEL");
#undef TESSERA_COUNT_KERNEL

}  // namespace tessera::ops

namespace tessera::ops {

/// A sum to add to, which is zero where it has no values yet; undefined ones stay so.
inline void begin(const Tensor& sum, bool add) {
  if (sum.defined() && !add) sum.zero_();
}

}  // namespace tessera::ops

namespace tessera::ops::cpu {

// Our kernels of CPUs, the functions of cpu_kernels() (kernels.h, where they are described).

TESSERA_EACH_KERNEL(TESSERA_DECLARE_KERNEL)

}  // namespace tessera::ops::cpu

namespace tessera::ops::aten {

// Every kernel in LibTorch's own operators, the functions of aten_kernels() (kernels.h, where they are described). Sums
// over tokens have a fixed order on every device: reductions of a dimension and matrix products, never atomic adds.

TESSERA_EACH_KERNEL(TESSERA_DECLARE_KERNEL)

}  // namespace tessera::ops::aten
