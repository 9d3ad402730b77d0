#include "tessera/ops/aten/aten.h"

namespace tessera::ops {

const Kernels& aten_kernels() {
  static constexpr Kernels table = {
      .name = "aten",
      .linear = aten::linear,
      .linear_input_gradient = aten::linear_input_gradient,
      .linear_weight_gradient = aten::linear_weight_gradient,
      .bias_gradient = aten::bias_gradient,
      .frozen_linear = aten::frozen_linear,
      .frozen_linear_backward = aten::frozen_linear_backward,
      .adapted_norms = aten::adapted_norms,
      .layer_norm = aten::layer_norm,
      .layer_norm_input_gradient = aten::layer_norm_input_gradient,
      .layer_norm_table_gradients = aten::layer_norm_table_gradients,
      .row_squares = aten::row_squares,
      .rms_norm = aten::rms_norm,
      .rms_norm_dots = aten::rms_norm_dots,
      .rms_norm_input_gradient = aten::rms_norm_input_gradient,
      .rms_norm_weight_gradient = aten::rms_norm_weight_gradient,
      .sum = aten::sum,
      .gated_residual = aten::gated_residual,
      .gated_branch_gradient = aten::gated_branch_gradient,
      .gate_gradient = aten::gate_gradient,
      .gelu_tanh = aten::gelu_tanh,
      .gelu_tanh_gradient = aten::gelu_tanh_gradient,
      .rope = aten::rope,
      .depthwise = aten::depthwise,
      .depthwise_input_gradient = aten::depthwise_input_gradient,
      .depthwise_weight_gradient = aten::depthwise_weight_gradient,
      .embedding_gradient = aten::embedding_gradient,
      .drop_rows = aten::drop_rows,
      .attention = aten::attention,
      .attention_backward = aten::attention_backward,
      .attention_delta = aten::attention_delta,
      .merge_attention = aten::merge_attention,
      .linear_attention_states = aten::linear_attention_states,
      .linear_attention_states_backward = aten::linear_attention_states_backward,
      .linear_attention_result = aten::linear_attention_result,
      .linear_attention_result_backward = aten::linear_attention_result_backward,
  };
  return table;
}

}  // namespace tessera::ops
