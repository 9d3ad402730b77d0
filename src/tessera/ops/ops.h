#pragma once
// Fused operators of diffusion transformers on packed tokens, with gradients; CPU kernels here, a plain reference in
// ops/reference.h that the tests compare them with. All run on meta tensors too, where they allocate what the CPU
// kernel would allocate: that is how the planner learns their bytes ([Note: bytes by running on meta] in
// engine/measure.h).
//
// Shapes: T tokens packed over samples, D channels, R modulation rows (token -> row by `rows` [T] int32).
//   y = ops::modulated_norm(x, shift, scale, rows, 1e-6);     // LN(x) * (1 + scale[row]) + shift[row]
#include "tessera/ops/weight.h"

namespace tessera::ops {

using at::Tensor;

// [Note: 16 bits] Tensors are fp32 unless said otherwise. x, y and weights may also be bf16 or fp16 (half.h): operands
// are widened as kernels read them, sums and statistics are fp32, and a result is rounded once, to `type` where an
// operator takes one, else to the type of its input. Gradients have the type of what they are gradients of; those of
// weights are fp32.

// [Note: made again] Results of norms and sums can be made again from what their nodes save: while a Rebuilds
// (rebuild.h) is open on the thread these operators offer how, so that a graph need not keep them.

/// y = x W^T + b. x [T, in], W [out, in], b [out] or null. Saves x only. dW and db go to the sites' gradients.
/// Frozen sites (undefined grad) cost no weight gradient.
Tensor linear(const Tensor& x, WeightSite& weight, WeightSite* bias, const Tensor& anchor,
              at::ScalarType type = at::kFloat);

/// LayerNorm with affine weight and bias (fp32 statistics). x [T, D]. Saves x and (mean, rstd) [T].
Tensor layer_norm(const Tensor& x, WeightSite& weight, WeightSite& bias, double eps, const Tensor& anchor,
                  at::ScalarType type = at::kFloat);

/// A width that several ranks share: each has some of the columns of every row.
struct SharedWidth {
  int64_t width = 0;                                   ///< of all ranks together
  std::function<void(const Tensor& sums)> sum_of_all;  ///< adds up [T] over the ranks, in place
};

/// RMSNorm over the whole last dim: x * rsqrt(mean(x^2) + eps) * w. Saves x and rstd [T]. `shared`: x and w are this
/// rank's columns of a width that several share; it outlives the graph.
Tensor rms_norm(const Tensor& x, WeightSite& weight, double eps, const Tensor& anchor,
                const SharedWidth* shared = nullptr);

/// RMSNorm over all D = heads * d_h channels, then rotary embedding of neighbouring pairs within each head
/// (Wan 2.1: (re, im) = components 2k, 2k+1). cos, sin: [T, d_h / 2] fp32. Saves x and rstd.
Tensor rms_norm_rope(const Tensor& x, WeightSite& weight, const Tensor& cos, const Tensor& sin, int64_t heads,
                     double eps, const Tensor& anchor, const SharedWidth* shared = nullptr);

/// LN(x) (no affine, fp32 statistics) * (1 + scale[row]) + shift[row]. x [T, D]; shift, scale [R, D] fp32, may be
/// strided views of a modulation [R, 6, D] (last dim contiguous). Gradients to x, shift, scale. Saves x, (mean, rstd),
/// scale.
Tensor modulated_norm(const Tensor& x, const Tensor& shift, const Tensor& scale, const Tensor& rows, double eps,
                      at::ScalarType type = at::kFloat);

/// x + y * gate[row]. x, y [T, D], x and the result fp32; gate [R, D]. Gradients to x (passed through, no copy), y,
/// gate. Saves y, gate. Without `value` the node is made and the result is one element spread over the shape: for a
/// rebuilt graph.
Tensor gated_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const Tensor& rows, bool value = true);

/// x + y [T, D] in the type of x, which is fp32 or that of y. Saves nothing.
Tensor sum(const Tensor& x, const Tensor& y);

/// GELU, tanh approximation. Saves x only.
Tensor gelu_tanh(const Tensor& x);

/// linear(gelu_tanh(x)) that saves x only; gelu(x) never exists as a whole, in neither direction. `known`: the result,
/// from a pass without a graph: the node is built around it and the product is not computed again.
Tensor gelu_linear(const Tensor& x, WeightSite& weight, WeightSite* bias, const Tensor& anchor,
                   at::ScalarType type = at::kFloat, const Tensor* known = nullptr);

/// Softmax attention within each sample of a packed batch, no mask. q [Tq, H*d], k, v [Tk, H*d]; offsets [B+1]. A
/// sample may have no queries. Scale 1/sqrt(d). Saves q, k, v, out and log-sum-exp [H, Tq]. `keep` receives the result
/// of a pass without a graph; `known` is such a result: the node is built around it and nothing is computed again.
struct AttentionResult {
  Tensor out, lse;
};
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                 const std::vector<int64_t>& q_offsets, const std::vector<int64_t>& k_offsets,
                 AttentionResult* keep = nullptr, const AttentionResult* known = nullptr);

/// The passes of attention one by one, without a graph, for keys that come in blocks (engine/parallel/ring.h): a result
/// for each block, merged; and gradients by block, of the log-sum-exp over all of them. Tensors to be written are made
/// by the caller: of the type of the operands, or fp32, to be merged and added up. lse and delta [H, rows], always
/// fp32, may be columns of wider ones. Samples without queries are passed over.
struct AttentionInputs {
  Tensor q, k, v;
};
void attention_forward(const AttentionInputs& in, int64_t heads, const std::vector<int64_t>& q_offsets,
                       const std::vector<int64_t>& k_offsets, const AttentionResult& result);
/// out . d_out of each query and head, [H, Tq]: all that backward needs of the output.
Tensor attention_delta(const Tensor& out, const Tensor& d_out, int64_t heads);
void attention_backward(const AttentionInputs& in, const Tensor& d_out, const Tensor& lse, const Tensor& delta,
                        int64_t heads, const std::vector<int64_t>& q_offsets, const std::vector<int64_t>& k_offsets,
                        const AttentionInputs& grads);
/// sum becomes the attention to its own keys and to those of `part`, exactly; both fp32.
void merge_attention(const AttentionResult& sum, const AttentionResult& part, int64_t heads);

/// Forward only, unscaled, with an additive bias [H, Lq, Lk] shared by the samples (UMT5). One sample a call.
Tensor attention_bias(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads, const Tensor& bias);

/// A small copy of a parameter, in fp32, whose gradient is added to the site's buffer (modulation tables and the like).
Tensor param(WeightSite& weight, const Tensor& anchor);

/// Rows of a table [V, D] by ids [T] int64; the gradient is added to the rows (when trainable).
Tensor embedding(const Tensor& ids, WeightSite& table, const Tensor& anchor);

}  // namespace tessera::ops
