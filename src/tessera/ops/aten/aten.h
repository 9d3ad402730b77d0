#pragma once
// Every kernel in LibTorch's own operators, the functions of aten_kernels() (kernels.h, where they are described). Sums
// over tokens have a fixed order on every device: reductions of a dimension and matrix products, never atomic adds.
#include "tessera/ops/kernels.h"

namespace tessera::ops::aten {

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias, bool gelu, at::ScalarType type);
Tensor linear_input_gradient(const Tensor& dy, const Tensor& w, const Tensor& x, bool gelu, bool in_place);
void linear_weight_gradient(const Tensor& dw, const Tensor& dy, const Tensor& x, bool gelu, bool add);
void bias_gradient(const Tensor& db, const Tensor& dy, bool add);
Tensor frozen_linear(const FrozenLinearParts& parts, at::ScalarType type);
Tensor frozen_linear_backward(const FrozenLinearParts& parts, const Tensor& dy, const Tensor& y, InputGradient wanted,
                              at::ScalarType type);
Tensor adapted_norms(const WeightSite& weight, const Adapter& adapter);
Tensor layer_norm(const Tensor& x, const NormTables& tables, double eps, at::ScalarType type, Tensor& stats);
Tensor layer_norm_input_gradient(const Tensor& dy, const Tensor& x, const NormTables& tables, const Tensor& stats);
void layer_norm_table_gradients(const Tensor& dy, const Tensor& x, const Tensor& stats, const RowIndex* rows,
                                const Tensor& dscale, const Tensor& dshift);
Tensor row_squares(const Tensor& x);
Tensor rms_norm(const Tensor& x, const Tensor& w, const RotaryTables& rotary, double eps, int64_t width,
                const Tensor& squares, Tensor& stats);
Tensor rms_norm_dots(const Tensor& dy, const Tensor& x, const Tensor& w, const RotaryTables& rotary, const Tensor& dx);
void rms_norm_input_gradient(const Tensor& dy, const Tensor& x, const Tensor& w, const RotaryTables& rotary,
                             const Tensor& stats, int64_t width, const Tensor& dots, const Tensor& dx);
void rms_norm_weight_gradient(const Tensor& dy, const Tensor& x, const RotaryTables& rotary, const Tensor& stats,
                              const Tensor& dw);
Tensor sum(const Tensor& x, const Tensor& y);
Tensor gated_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const RowIndex& rows);
void gated_branch_gradient(const Tensor& up, const Tensor& gate, const RowIndex& rows, const Tensor& dy);
void gate_gradient(const Tensor& up, const Tensor& y, const RowIndex& rows, const Tensor& dgate);
Tensor gelu_tanh(const Tensor& x);
Tensor gelu_tanh_gradient(const Tensor& dy, const Tensor& x);
Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t heads, bool half_split, float sign);
Tensor depthwise(const Tensor& x, const Tensor& table, const Tensor& w, const Tensor& bias);
Tensor depthwise_input_gradient(const Tensor& dy, const Tensor& table, const Tensor& w, int64_t source_rows);
void depthwise_weight_gradient(const Tensor& dy, const Tensor& x, const Tensor& table, const Tensor& dw);
void embedding_gradient(const Tensor& grad, const Tensor& ids, const Tensor& dy);
void drop_rows(const Tensor& x, const Dropout& drop, int64_t first_row);
void attention(const AttentionInputs& in, const Tensor& bias, int64_t heads, double scale, const Offsets& q_at,
               const Offsets& k_at, const AttentionResult& result);
void attention_backward(const AttentionInputs& in, const Tensor& out, const Tensor& d_out, const Tensor& lse,
                        const Tensor& delta, int64_t heads, const Offsets& q_at, const Offsets& k_at,
                        const AttentionInputs& grads);
Tensor attention_delta(const Tensor& out, const Tensor& d_out, int64_t heads);
void merge_attention(const AttentionResult& sum, const AttentionResult& part, int64_t heads);
Tensor linear_attention_states(const Tensor& rotated, const Tensor& k, const Tensor& v, int64_t heads,
                               const Offsets& at);
Kernels::StatesGradients linear_attention_states_backward(const Tensor& up, const Tensor& rotated, const Tensor& v,
                                                          bool same, int64_t heads, const Offsets& at);
Tensor linear_attention_result(const Tensor& rotated, const Tensor& q, const Tensor& states, int64_t heads,
                               const Offsets& at, double eps, Tensor& down);
Kernels::ResultGradients linear_attention_result_backward(const Tensor& dy, const Kernels::SavedResult& saved,
                                                          bool same, int64_t heads, const Offsets& at);

}  // namespace tessera::ops::aten
