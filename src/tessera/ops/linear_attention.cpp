// Linear attention in two steps (rows.h). Forward and backward allocate only their results, and fp32 copies of 16-bit
// operands.
#include <ATen/Parallel.h>

#include "tessera/base/check.h"
#include "tessera/ops/gemm.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/node.h"
#include "tessera/ops/rows.h"

namespace tessera::ops {

namespace {

using Offsets = std::vector<int64_t>;

/// Calls work(sample, head, first row, rows) for samples with rows, in parallel over heads.
template <class Work>
void each_head(const Offsets& at, int64_t heads, const Work& work) {
  at::parallel_for(0, heads, 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard none;
    for (int64_t h = begin; h < end; ++h)
      for (int64_t s = 0; s + 1 < static_cast<int64_t>(at.size()); ++s)
        if (at[s + 1] > at[s]) work(s, h, at[s], at[s + 1] - at[s]);
  });
}

/// One head's columns of some rows of x [T, heads * d].
Tensor block(const Tensor& x, int64_t head, int64_t d, int64_t first, int64_t rows) {
  return x.narrow(0, first, rows).narrow(1, head * d, d);
}
Tensor like_in_fp32(const Tensor& x) { return at::empty(x.sizes(), x.options().dtype(at::kFloat)); }

/// sums[c] += x[r, c]; and: each row += sums.
TESSERA_KERNEL void add_to_sums(float* __restrict sums, const float* __restrict x, int64_t ld, int64_t rows,
                                int64_t d) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < d; ++c) sums[c] += x[r * ld + c];
}
TESSERA_KERNEL void put_in_rows(float* __restrict x, const float* __restrict row, int64_t ld, int64_t rows, int64_t d,
                                bool add) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < d; ++c) x[r * ld + c] = row[c] + (add ? x[r * ld + c] : 0.0f);
}

struct States : Function<States> {
  static Tensor run(const Tensor& rotated, const Tensor& k, const Tensor& v, int64_t heads, const Offsets& at) {
    const int64_t width = k.size(1), d = width / heads;
    const Tensor a = as_floats(rotated), b = as_floats(k), c = as_floats(v);
    const Tensor states = at::zeros({static_cast<int64_t>(at.size()) - 1, heads, d + 1, d}, b.options());
    if (states.is_meta()) return states;
    each_head(at, heads, [&](int64_t s, int64_t h, int64_t first, int64_t rows) {
      const Tensor state = states.select(0, s).select(0, h);
      gemm(state.narrow(0, 0, d), block(a, h, d, first, rows).t(), block(c, h, d, first, rows));
      add_to_sums(out_data(state) + d * d, data(b) + first * width + h * d, width, rows, d);
    });
    return states;
  }

  static Tensor forward(AutogradContext* ctx, const Tensor& rotated, const Tensor& k, const Tensor& v, int64_t heads,
                        const Offsets& at) {
    ctx->save_for_backward({rotated, k, v});
    ctx->saved_data["heads"] = heads, ctx->saved_data["at"] = at;
    ctx->saved_data["same"] = rotated.is_same(k);
    return run(rotated, k, v, heads, at);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor up = grads[0].contiguous(), a = as_floats(saved[0]), c = as_floats(saved[2]);
    const Offsets at = ctx->saved_data["at"].toIntVector();
    const int64_t heads = ctx->saved_data["heads"].toInt(), width = a.size(1), d = width / heads;
    const bool same = ctx->saved_data["same"].toBool();
    const Tensor d_turned = like_in_fp32(a), d_v = like_in_fp32(c), d_k = same ? d_turned : like_in_fp32(a);
    if (!up.is_meta())
      each_head(at, heads, [&](int64_t s, int64_t h, int64_t first, int64_t rows) {
        const Tensor state = up.select(0, s).select(0, h), products = state.narrow(0, 0, d);
        gemm(block(d_turned, h, d, first, rows), block(c, h, d, first, rows), products.t());
        gemm(block(d_v, h, d, first, rows), block(a, h, d, first, rows), products);
        put_in_rows(out_data(d_k) + first * width + h * d, data(state) + d * d, width, rows, d, same);
      });
    const at::ScalarType type = saved[1].scalar_type();
    return {d_turned.to(type), same ? Tensor() : d_k.to(type), d_v.to(type), {}, {}};
  }
};

/// Rows of one head: out = up / (q . sums + eps), and the divisor of each row.
TESSERA_KERNEL void divide_rows(float* __restrict out, float* __restrict down, const float* __restrict q,
                                const float* __restrict sums, float eps, int64_t ld, int64_t heads, int64_t rows,
                                int64_t d) {
  for (int64_t r = 0; r < rows; ++r) {
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t c = 0; c < d; ++c) dot += q[r * ld + c] * sums[c];
    down[r * heads] = dot + eps;
    for (int64_t c = 0; c < d; ++c) out[r * ld + c] /= down[r * heads];
  }
}
/// g = dy / down, and with slope = -(g . y), the gradient of `down`: dq (+)= slope * sums, d_sums += slope * q.
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
    for (int64_t c = 0; c < d; ++c) dq[r * ld + c] = slope * sums[c], d_sums[c] += slope * q[r * ld + c];
  }
}

struct FromStates : Function<FromStates> {
  static Tensor run(const Tensor& rotated, const Tensor& q, const Tensor& states, int64_t heads, const Offsets& at,
                    double eps, Tensor& down) {
    const int64_t width = q.size(1), d = width / heads;
    const Tensor a = as_floats(rotated), b = as_floats(q);
    const Tensor out = like_in_fp32(b);
    down = at::empty({q.size(0), heads}, b.options());
    if (!out.is_meta())
      each_head(at, heads, [&](int64_t s, int64_t h, int64_t first, int64_t rows) {
        const Tensor state = states.select(0, s).select(0, h);
        gemm(block(out, h, d, first, rows), block(a, h, d, first, rows), state.narrow(0, 0, d));
        const int64_t at_row = first * width + h * d;
        divide_rows(out_data(out) + at_row, out_data(down) + first * heads + h, data(b) + at_row, data(state) + d * d,
                    static_cast<float>(eps), width, heads, rows, d);
      });
    return out.to(q.scalar_type());
  }

  static Tensor forward(AutogradContext* ctx, const Tensor& rotated, const Tensor& q, const Tensor& states,
                        int64_t heads, const Offsets& at, double eps) {
    Tensor down;
    const Tensor out = run(rotated, q, states, heads, at, eps, down);
    ctx->save_for_backward({rotated, q, states, out, down});
    ctx->saved_data["heads"] = heads, ctx->saved_data["at"] = at;
    ctx->saved_data["same"] = rotated.is_same(q);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor dy = as_floats(grads[0].contiguous()), a = as_floats(saved[0]), b = as_floats(saved[1]),
                 &states = saved[2], y = as_floats(saved[3]), &down = saved[4];
    const Offsets at = ctx->saved_data["at"].toIntVector();
    const int64_t heads = ctx->saved_data["heads"].toInt(), width = a.size(1), d = width / heads;
    const bool same = ctx->saved_data["same"].toBool();
    const Tensor g = like_in_fp32(b), d_q = like_in_fp32(b), d_turned = same ? d_q : like_in_fp32(b),
                 d_states = at::zeros(states.sizes(), states.options());
    if (!dy.is_meta())
      each_head(at, heads, [&](int64_t s, int64_t h, int64_t first, int64_t rows) {
        const Tensor state = states.select(0, s).select(0, h), d_state = d_states.select(0, s).select(0, h);
        const int64_t at_row = first * width + h * d;
        divide_rows_backward(out_data(g) + at_row, out_data(d_q) + at_row, out_data(d_state) + d * d, data(dy) + at_row,
                             data(y) + at_row, data(down) + first * heads + h, data(b) + at_row, data(state) + d * d,
                             width, heads, rows, d);
        const Tensor up = block(g, h, d, first, rows);
        gemm(block(d_turned, h, d, first, rows), up, state.narrow(0, 0, d).t(), /*add=*/same);
        gemm(d_state.narrow(0, 0, d), block(a, h, d, first, rows).t(), up);
      });
    const at::ScalarType type = saved[1].scalar_type();
    return {same ? d_q.to(type) : d_turned.to(type), same ? Tensor() : d_q.to(type), d_states, {}, {}, {}};
  }
};

void check_heads(const Tensor& a, const Tensor& b, int64_t heads, const Offsets& at) {
  const bool fits = a.sizes() == b.sizes() && a.is_contiguous() && b.is_contiguous() && a.size(1) % heads == 0;
  check_internal(fits && at.back() == a.size(0), "ops.linear_attention",
                 "the operands must be contiguous [rows, heads * d] of the samples' rows");
}

}  // namespace

Tensor linear_attention_states(const Tensor& rotated_k, const Tensor& k, const Tensor& v, int64_t heads,
                               const Offsets& at) {
  check_heads(rotated_k, k, heads, at), check_heads(k, v, heads, at);
  if (wants_graph({&rotated_k, &k, &v})) return States::apply(rotated_k, k, v, heads, at);
  return States::run(rotated_k, k, v, heads, at);
}

Tensor linear_attention_result(const Tensor& rotated_q, const Tensor& q, const Tensor& states, int64_t heads,
                               const Offsets& at, double eps) {
  check_heads(rotated_q, q, heads, at);
  if (wants_graph({&rotated_q, &q, &states})) return FromStates::apply(rotated_q, q, states, heads, at, eps);
  Tensor down;
  return FromStates::run(rotated_q, q, states, heads, at, eps, down);
}

}  // namespace tessera::ops
