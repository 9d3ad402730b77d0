#pragma once
// Reordering the rows of a packed tensor, rotary embedding, linear attention and convolutions over rows.
//
//   Tensor y = ops::take_rows(x, order);           // y[i] = x[order[i]], order a permutation
//   x = ops::put_rows(y, order);                   // the inverse
#include "tessera/ops/weight.h"

namespace tessera::ops {

using at::Tensor;

/// x [T, D], order [T] int64, each row once. Each function is the other's inverse and gradient. Saves the order.
Tensor take_rows(const Tensor& x, const Tensor& order);
Tensor put_rows(const Tensor& x, const Tensor& order);

/// Rotates pairs of channels in each head by cos and sin [T, d_h / 2] fp32: neighbours, or (half_split) i and i +
/// d_h/2. x [T, heads * d_h]. Saves the tables.
Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t heads, bool half_split);

/// A depthwise convolution as a sum over taps: y[r] = sum_t w[:, t] * x[table[t, r]] + b, skipping entries -1. x [N,
/// D], table [taps, T] int32, weight D * taps values, bias [D] or null; with `silu` of silu(x). Saves x and the table.
Tensor depthwise(const Tensor& x, const Tensor& table, WeightSite& weight, WeightSite* bias, const Tensor& anchor,
                 at::ScalarType type = at::kFloat, bool silu = false);

/// value * silu(y) of such a y, in the dtype of `value`. Saves value, x and the table: the backward computes y again.
Tensor gated_depthwise(const Tensor& value, const Tensor& x, const Tensor& table, WeightSite& weight, WeightSite* bias,
                       const Tensor& anchor, bool silu = false);

/// The rows that each tap reads, side by side: y[r, c * taps + t] = x[table[t, r], c], zero for entries -1. x [N, D],
/// table [taps, T] int32; in the dtype of x. Saves the table.
Tensor unfold(const Tensor& x, const Tensor& table);

/// Linear attention in two steps, in fp32: the sums over each sample's keys, [B, heads, d + 1, d], whose last row is
/// the sum of `k`; and the result for queries, in the dtype of q (fp16: within its largest value). `rotated_k`, `rotated_q`: used instead of k and q in
/// the products with values. Offsets [B+1]; a sample may have no rows.
Tensor linear_attention_states(const Tensor& rotated_k, const Tensor& k, const Tensor& v, int64_t heads,
                               const std::vector<int64_t>& offsets);
Tensor linear_attention_result(const Tensor& rotated_q, const Tensor& q, const Tensor& states, int64_t heads,
                               const std::vector<int64_t>& offsets, double eps);

}  // namespace tessera::ops
