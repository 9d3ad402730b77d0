#include "tessera/ops/cpu/cpu.h"

namespace tessera::ops {

const Kernels& cpu_kernels() {
  static constexpr Kernels table = {
      .name = "cpu",
      .linear = cpu::linear,
      .linear_input_gradient = cpu::linear_input_gradient,
      .linear_weight_gradient = cpu::linear_weight_gradient,
      .bias_gradient = cpu::bias_gradient,
      .frozen_linear = cpu::frozen_linear,
      .frozen_linear_backward = cpu::frozen_linear_backward,
      .adapted_norms = cpu::adapted_norms,
      .layer_norm = cpu::layer_norm,
      .layer_norm_input_gradient = cpu::layer_norm_input_gradient,
      .layer_norm_table_gradients = cpu::layer_norm_table_gradients,
      .row_squares = cpu::row_squares,
      .rms_norm = cpu::rms_norm,
      .rms_norm_dots = cpu::rms_norm_dots,
      .rms_norm_input_gradient = cpu::rms_norm_input_gradient,
      .rms_norm_weight_gradient = cpu::rms_norm_weight_gradient,
      .sum = cpu::sum,
      .gated_residual = cpu::gated_residual,
      .gated_branch_gradient = cpu::gated_branch_gradient,
      .gate_gradient = cpu::gate_gradient,
      .gelu_tanh = cpu::gelu_tanh,
      .gelu_tanh_gradient = cpu::gelu_tanh_gradient,
      .rope = cpu::rope,
      .depthwise = cpu::depthwise,
      .depthwise_input_gradient = cpu::depthwise_input_gradient,
      .depthwise_weight_gradient = cpu::depthwise_weight_gradient,
      .embedding_gradient = cpu::embedding_gradient,
      .drop_rows = cpu::drop_rows,
      .attention = cpu::attention,
      .attention_backward = cpu::attention_backward,
      .attention_delta = cpu::attention_delta,
      .merge_attention = cpu::merge_attention,
      .linear_attention_states = cpu::linear_attention_states,
      .linear_attention_states_backward = cpu::linear_attention_states_backward,
      .linear_attention_result = cpu::linear_attention_result,
      .linear_attention_result_backward = cpu::linear_attention_result_backward,
  };
  return table;
}

}  // namespace tessera::ops
