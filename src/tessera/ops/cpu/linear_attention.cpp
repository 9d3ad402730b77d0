// Linear attention in two steps, on CPUs. Forward and backward allocate only their results.
#include <ATen/Parallel.h>

#include "tessera/ops/gemm.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/kernel_list.h"
#include "tessera/ops/node.h"

namespace tessera::ops::cpu {

namespace {

/// Calls work(sample, head, first row, rows) for samples with rows, in parallel over heads.
template <class Work>
void each_linear_head(const Offsets& at, int64_t heads, const Work& work) {
  at::parallel_for(0, heads, 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard none;
    for (int64_t h = begin; h < end; ++h)
      for (int64_t s = 0; s + 1 < static_cast<int64_t>(at.size()); ++s)
        if (at[s + 1] > at[s]) work(s, h, at[s], at[s + 1] - at[s]);
  });
}

/// One head's columns of some rows of x [T, heads * d].
Tensor head_block(const Tensor& x, int64_t head, int64_t d, int64_t first, int64_t rows) {
  return x.narrow(0, first, rows).narrow(1, head * d, d);
}
Tensor like_in_fp32(const Tensor& x) { return at::empty(x.sizes(), x.options().dtype(at::kFloat)); }

/// max(0, x), where NaN stays; as a function of an operand of gemm().
inline float positive(float x) { return x <= 0 ? 0.0f : x; }
void make_positive(float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = positive(values[i]);
}

/// sums[c] += max(0, x[r, c]); and: each row = or += sums. The gradient is 0 where x is not above 0.
TESSERA_KERNEL void add_to_state_sums(float* __restrict sums, const float* __restrict x, int64_t ld, int64_t rows,
                                      int64_t d) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < d; ++c) sums[c] += positive(x[r * ld + c]);
}
TESSERA_KERNEL void put_in_rows(float* __restrict dx, const float* __restrict row, const float* __restrict x,
                                int64_t ld, int64_t rows, int64_t d, bool add) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < d; ++c) dx[r * ld + c] = x[r * ld + c] <= 0 ? 0.0f : row[c] + (add ? dx[r * ld + c] : 0.0f);
}
TESSERA_KERNEL void keep_where_positive(float* __restrict dx, const float* __restrict x, int64_t ld, int64_t rows,
                                        int64_t d) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < d; ++c) dx[r * ld + c] = x[r * ld + c] <= 0 ? 0.0f : dx[r * ld + c];
}

/// Rows of one head: out = up / (max(0, q) . sums + eps), and the divisor of each row.
TESSERA_KERNEL void divide_rows(float* __restrict out, float* __restrict down, const float* __restrict q,
                                const float* __restrict sums, float eps, int64_t ld, int64_t heads, int64_t rows,
                                int64_t d) {
  for (int64_t r = 0; r < rows; ++r) {
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t c = 0; c < d; ++c) dot += positive(q[r * ld + c]) * sums[c];
    down[r * heads] = dot + eps;
    for (int64_t c = 0; c < d; ++c) out[r * ld + c] /= down[r * heads];
  }
}
/// g = dy / down, and with slope = -(g . y), the gradient of `down`: dq = slope * sums, d_sums += slope * max(0, q).
TESSERA_KERNEL void divide_rows_backward(float* __restrict g, float* __restrict dq, float* __restrict d_sums,
                                         const float* __restrict dy, const float* __restrict y,
                                         const float* __restrict down, const float* __restrict q,
                                         const float* __restrict sums, int64_t ld, int64_t heads, int64_t rows,
                                         int64_t d) {
  for (int64_t r = 0; r < rows; ++r) {
    float slope = 0;
    for (int64_t c = 0; c < d; ++c) g[r * ld + c] = dy[r * ld + c] / down[r * heads];
#pragma omp simd reduction(- : slope)
    for (int64_t c = 0; c < d; ++c) slope -= g[r * ld + c] * y[r * ld + c];
    for (int64_t c = 0; c < d; ++c) dq[r * ld + c] = slope * sums[c], d_sums[c] += slope * positive(q[r * ld + c]);
  }
}

}  // namespace

Tensor linear_attention_states(const Tensor& rotated_k, const Tensor& plain_k, const Tensor& values, int64_t heads,
                               const Offsets& at) {
  const bool same = rotated_k.is_same(plain_k);
  const Tensor k = as_floats(plain_k), rotated = same ? k : as_floats(rotated_k), v = as_floats(values);
  const int64_t width = k.size(1), d = width / heads;
  const Tensor states = at::zeros({static_cast<int64_t>(at.size()) - 1, heads, d + 1, d}, k.options());
  if (states.is_meta()) return states;
  each_linear_head(at, heads, [&](int64_t s, int64_t h, int64_t first, int64_t rows) {
    const Tensor state = states.select(0, s).select(0, h);
    gemm(state.narrow(0, 0, d), head_block(rotated, h, d, first, rows).t(), head_block(v, h, d, first, rows),
         /*add=*/false, same ? make_positive : nullptr);
    add_to_state_sums(out_data(state) + d * d, data(k) + first * width + h * d, width, rows, d);
  });
  return states;
}

Kernels::StatesGradients linear_attention_states_backward(const Tensor& up, const Tensor& rotated_k,
                                                          const Tensor& plain_k, const Tensor& values, bool same,
                                                          int64_t heads, const Offsets& at) {
  const Tensor k = as_floats(plain_k), rotated = same ? k : as_floats(rotated_k), v = as_floats(values);
  const int64_t width = rotated.size(1), d = width / heads;
  const Tensor d_rotated = like_in_fp32(rotated), d_v = like_in_fp32(v), d_k = same ? d_rotated : like_in_fp32(rotated);
  if (!up.is_meta())
    each_linear_head(at, heads, [&](int64_t s, int64_t h, int64_t first, int64_t rows) {
      const Tensor state = up.select(0, s).select(0, h), products = state.narrow(0, 0, d);
      gemm(head_block(d_rotated, h, d, first, rows), head_block(v, h, d, first, rows), products.t());
      gemm(head_block(d_v, h, d, first, rows), head_block(rotated, h, d, first, rows), products, /*add=*/false,
           same ? make_positive : nullptr);
      const int64_t at_row = first * width + h * d;
      put_in_rows(out_data(d_k) + at_row, data(state) + d * d, data(k) + at_row, width, rows, d, same);
    });
  return {d_rotated, d_k, d_v};
}

Tensor linear_attention_result(const Tensor& rotated_q, const Tensor& plain_q, const Tensor& states, int64_t heads,
                               const Offsets& at, double eps, Tensor& down) {
  const bool same = rotated_q.is_same(plain_q);
  const Tensor q = as_floats(plain_q), rotated = same ? q : as_floats(rotated_q);
  const int64_t width = q.size(1), d = width / heads;
  const Tensor out = like_in_fp32(q);
  down = at::empty({q.size(0), heads}, q.options());
  if (!out.is_meta())
    each_linear_head(at, heads, [&](int64_t s, int64_t h, int64_t first, int64_t rows) {
      const Tensor state = states.select(0, s).select(0, h);
      gemm(head_block(out, h, d, first, rows), head_block(rotated, h, d, first, rows), state.narrow(0, 0, d),
           /*add=*/false, same ? make_positive : nullptr);
      const int64_t at_row = first * width + h * d;
      divide_rows(out_data(out) + at_row, out_data(down) + first * heads + h, data(q) + at_row, data(state) + d * d,
                  static_cast<float>(eps), width, heads, rows, d);
    });
  return out;
}

Kernels::ResultGradients linear_attention_result_backward(const Tensor& up_y, const Kernels::SavedResult& given,
                                                          bool same, int64_t heads, const Offsets& at) {
  const Tensor dy = as_floats(up_y);
  const Tensor q = as_floats(given.q);
  const Kernels::SavedResult saved = {same ? q : as_floats(given.rotated), q, given.states, as_floats(given.out),
                                      given.down};
  const int64_t width = saved.q.size(1), d = width / heads;
  const Tensor g = like_in_fp32(saved.q), d_q = like_in_fp32(saved.q), d_rotated = same ? d_q : like_in_fp32(saved.q),
               d_states = at::zeros(saved.states.sizes(), saved.states.options());
  if (!dy.is_meta())
    each_linear_head(at, heads, [&](int64_t s, int64_t h, int64_t first, int64_t rows) {
      const Tensor state = saved.states.select(0, s).select(0, h), d_state = d_states.select(0, s).select(0, h);
      const int64_t at_row = first * width + h * d;
      divide_rows_backward(out_data(g) + at_row, out_data(d_q) + at_row, out_data(d_state) + d * d, data(dy) + at_row,
                           data(saved.out) + at_row, data(saved.down) + first * heads + h, data(saved.q) + at_row,
                           data(state) + d * d, width, heads, rows, d);
      const Tensor up = head_block(g, h, d, first, rows);
      gemm(head_block(d_rotated, h, d, first, rows), up, state.narrow(0, 0, d).t(), /*add=*/same);
      keep_where_positive(out_data(d_q) + at_row, data(q) + at_row, width, rows, d);
      gemm(d_state.narrow(0, 0, d), head_block(saved.rotated, h, d, first, rows).t(), up, /*add=*/false,
           same ? make_positive : nullptr);
    });
  return {d_rotated, d_q, d_states};
}

}  // namespace tessera::ops::cpu
