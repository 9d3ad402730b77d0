#pragma once
// Fused operators of diffusion transformers on packed tokens, with gradients, tested against the plain reference in
// ops/reference.h. Their arithmetic is in tables of kernels, one for each kind of device (kernels.h). On meta tensors
// they allocate what the kernels would allocate, which is how the planner measures memory ([Note: bytes by running on
// meta] in engine/measure.h).
//
// Shapes: T tokens packed over samples, D channels, R modulation rows (row_index.h says which token has which).
//   y = ops::modulated_norm(x, shift, scale, rows, 1e-6);     // LN(x) * (1 + scale[row]) + shift[row]
#include "tessera/ops/dropout.h"
#include "tessera/ops/row_index.h"
#include "tessera/ops/weight.h"

namespace tessera::ops {

using at::Tensor;

// [Note: 16 bits] Tensors are fp32 unless stated otherwise. x, y and weights may also be bf16 or fp16 (half.h): kernels
// widen operands while reading, sums and statistics are fp32, and a result is rounded once, to `type` if the operator
// has that argument, else to the dtype of its input. Gradients have the dtype of their tensors, except those of
// weights, which are fp32.

// [Note: selective recompute] Results of norms and sums can be recomputed from what their nodes save: while a Rebuilds
// (rebuild.h) is open on the thread, these operators register how, so that a graph need not keep the results.

/// y = x W^T + b. x [T, in], W [out, in], b [out] or null. Saves x only. dW and db go to the sites' gradients.
/// Frozen sites (undefined grad) cost no weight gradient. `late`: dW and db may wait until dx is under way to other
/// ranks (session.h). `passed`: receives x for the next linear that reads it: the gradient from there comes to this operator,
/// whose product is added to it. Left undefined where nothing needs a gradient.
enum class When { at_once, late };
Tensor linear(const Tensor& x, WeightSite& weight, WeightSite* bias, const Tensor& anchor,
              at::ScalarType type = at::kFloat, When weight_gradients = When::at_once, Tensor* passed = nullptr);

/// LayerNorm with affine weight and bias (fp32 statistics). x [T, D]. Saves x and (mean, rstd) [T]. `passed`: receives x
/// for what else reads it, a residual sum: the gradient from there comes to this operator, which adds it to its own in the
/// same pass. Left undefined where nothing needs a gradient.
Tensor layer_norm(const Tensor& x, WeightSite& weight, WeightSite& bias, double eps, const Tensor& anchor,
                  at::ScalarType type = at::kFloat, Tensor* passed = nullptr);

/// A width that is sharded over ranks: each has some columns of every row.
struct SharedWidth {
  int64_t width = 0;                                   ///< total over all ranks
  std::function<void(const Tensor& sums)> sum_of_all;  ///< sums [T] over the ranks, in place
};

/// RMSNorm over the whole last dim: x * rsqrt(mean(x^2) + eps) * w. Saves x and rstd [T]. `shared`: x and w are this
/// rank's columns of a sharded width; it must outlive the graph.
Tensor rms_norm(const Tensor& x, WeightSite& weight, double eps, const Tensor& anchor,
                const SharedWidth* shared = nullptr);

/// RMSNorm over all D = heads * d_h channels, then rotary embedding of neighbouring pairs within each head
/// (Wan 2.1: (re, im) = components 2k, 2k+1). cos, sin: [T, d_h / 2] fp32. Saves x and rstd.
Tensor rms_norm_rope(const Tensor& x, WeightSite& weight, const Tensor& cos, const Tensor& sin, int64_t heads,
                     double eps, const Tensor& anchor, const SharedWidth* shared = nullptr);

/// LN(x) (no affine, fp32 statistics) * (1 + scale[row]) + shift[row]. x [T, D]; shift, scale [R, D] fp32, may be
/// strided views of a modulation [R, 6, D] (last dim contiguous). Gradients to x, shift, scale. Saves x, (mean, rstd),
/// scale. `passed` as in layer_norm.
Tensor modulated_norm(const Tensor& x, const Tensor& shift, const Tensor& scale, const RowIndex& rows, double eps,
                      at::ScalarType type = at::kFloat, Tensor* passed = nullptr);

/// x + y * gate[row]. x, y [T, D], x and the result fp32; gate [R, D]. Gradients to x (passed through, no copy), y,
/// gate. Saves y, gate. `value` = false: makes the node with an expanded one-element result, for a recomputed graph.
/// `rounded`: receives the result in bf16 as well, for products, where the device writes both in one pass.
Tensor gated_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const RowIndex& rows, bool value = true,
                      Tensor* rounded = nullptr);

/// x + y [T, D] in the dtype of x, which is fp32 or that of y. Saves nothing.
Tensor sum(const Tensor& x, const Tensor& y);

/// GELU, tanh approximation. Saves x only.
Tensor gelu_tanh(const Tensor& x);

/// linear(gelu_tanh(x)) that saves x only; gelu(x) never exists as a whole, in forward or backward. `known`: the result
/// of a pass without a graph: makes the node around it without recomputing the product.
Tensor gelu_linear(const Tensor& x, WeightSite& weight, WeightSite* bias, const Tensor& anchor,
                   at::ScalarType type = at::kFloat, const Tensor* known = nullptr);

/// Softmax attention within each sample of a packed batch, without a mask. q [Tq, H*d], k, v [Tk, H*d]; offsets [B+1].
/// A sample may have no queries. Scale 1/sqrt(d). Saves q, k, v, out and log-sum-exp [H, Tq]. `keep` receives the
/// result of a pass without a graph; `known` is such a result: makes the node around it without recomputing attention.
struct AttentionResult {
  Tensor out, lse;
};
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                 const std::vector<int64_t>& q_offsets, const std::vector<int64_t>& k_offsets,
                 AttentionResult* keep = nullptr, const AttentionResult* known = nullptr);

/// The passes of attention separately, without a graph, for keys in blocks (engine/sequence_attention.h): results of each
/// block to be merged, and gradients of each block for the log-sum-exp over all blocks. The caller allocates the
/// outputs: in the dtype of the operands, or fp32 for merging and summing. lse and delta [H, rows], always fp32, may be
/// column ranges of wider tensors. Samples without queries are skipped.
struct AttentionInputs {
  Tensor q, k, v;
};
void attention_forward(const AttentionInputs& in, int64_t heads, const std::vector<int64_t>& q_offsets,
                       const std::vector<int64_t>& k_offsets, const AttentionResult& result);
/// out . d_out of each query and head, [H, Tq]: all that the backward needs of the output.
Tensor attention_delta(const Tensor& out, const Tensor& d_out, int64_t heads);
void attention_backward(const AttentionInputs& in, const Tensor& d_out, const Tensor& lse, const Tensor& delta,
                        int64_t heads, const std::vector<int64_t>& q_offsets, const std::vector<int64_t>& k_offsets,
                        const AttentionInputs& grads);
/// Merges the attention over the keys of `part` into `sum`, exactly; both fp32.
void merge_attention(const AttentionResult& sum, const AttentionResult& part, int64_t heads);

/// Forward only, unscaled, with an additive bias [H, Lq, Lk] shared by the samples (UMT5). One sample a call.
Tensor attention_bias(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads, const Tensor& bias);

/// Drops elements of x [n, cols] in place, without a gradient: rows first_row..first_row + n of an adapter's input.
void drop_rows(const Tensor& x, const Dropout& drop, int64_t first_row);

/// A small parameter copied to fp32 (a modulation table, for example), whose gradient is added to the site's buffer.
Tensor param(WeightSite& weight, const Tensor& anchor);
/// param() + x in one pass, x fp32 [R, ...], each row of which has the parameter's size.
Tensor param_plus(WeightSite& weight, const Tensor& x, const Tensor& anchor);

/// Rows of a table [V, D] by ids [T] int64; adds the gradient to these rows if the table is trained.
Tensor embedding(const Tensor& ids, WeightSite& table, const Tensor& anchor);

}  // namespace tessera::ops
