// LayerNorm with affine weights, and LayerNorm modulated by rows: y = (x - mean) * rstd * (one + scale[row]) +
// shift[row]. The affine one is the same with one = 0 and a single row. Statistics are fp32; the backward needs x and
// two numbers for each token.
#include <ATen/Parallel.h>

#include "tessera/base/check.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/node.h"
#include "tessera/ops/ops.h"
#include "tessera/ops/rebuild.h"

namespace tessera::ops {

namespace {

constexpr int64_t kTokenGrain = 64, kColumnGrain = 64;

/// A vector for each token: row index[t] of a table, or the only row.
struct Table {
  const float* values;
  int64_t stride = 0;
  const int32_t* index = nullptr;
  const float* of(int64_t t) const { return values + (index ? index[t] * stride : 0); }
  /// the table from token t on
  Table from(int64_t t) const { return {values, stride, index ? index + t : nullptr}; }
};

/// `known`: stats are read instead of computed.
TESSERA_KERNEL void forward_kernel(const float* x, Table scale, Table shift, float one, float eps, bool known,
                                   int64_t begin, int64_t end, int64_t n, float* y, float* stats) {
  for (int64_t t = begin; t < end; ++t) {
    const float* __restrict row = x + t * n;
    if (!known) {
      float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < n; ++i) sum += row[i];
      const float mean = sum / static_cast<float>(n);
#pragma omp simd reduction(+ : squares)
      for (int64_t i = 0; i < n; ++i) squares += (row[i] - mean) * (row[i] - mean);
      stats[2 * t] = mean;
      stats[2 * t + 1] = 1 / std::sqrt(squares / static_cast<float>(n) + eps);
    }
    const float mean = stats[2 * t], rstd = stats[2 * t + 1];
    const float* __restrict a = scale.of(t), * __restrict b = shift.of(t);
    float* __restrict out = y + t * n;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = (row[i] - mean) * rstd * (one + a[i]) + b[i];
  }
}

TESSERA_KERNEL void input_kernel(const float* dy, const float* x, Table scale, float one, const float* stats,
                                 int64_t begin, int64_t end, int64_t n, float* dx) {
  for (int64_t t = begin; t < end; ++t) {
    const float mean = stats[2 * t], rstd = stats[2 * t + 1];
    const float* __restrict g = dy + t * n, * __restrict row = x + t * n, * __restrict a = scale.of(t);
    float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t i = 0; i < n; ++i) {
      const float weighted = g[i] * (one + a[i]);
      sum += weighted;
      dot += weighted * (row[i] - mean) * rstd;
    }
    sum /= static_cast<float>(n);
    dot /= static_cast<float>(n);
    float* __restrict out = dx + t * n;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = (g[i] * (one + a[i]) - sum - (row[i] - mean) * rstd * dot) * rstd;
  }
}

/// Columns [begin, end) of the gradients of scale and shift, over tokens in order; null: not needed.
TESSERA_KERNEL void table_kernel(const float* dy, const float* x, const float* stats, const int32_t* index,
                                 int64_t tokens, int64_t n, int64_t begin, int64_t end, float* dscale, float* dshift) {
  for (int64_t t = 0; t < tokens; ++t) {
    const float mean = stats[2 * t], rstd = stats[2 * t + 1];
    const int64_t at = index ? index[t] * n : 0;
    const float* __restrict g = dy + t * n, * __restrict row = x + t * n;
    if (dscale) {
      float* __restrict out = dscale + at;
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) out[i] += g[i] * (row[i] - mean) * rstd;
    }
    if (dshift) {
      float* __restrict out = dshift + at;
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) out[i] += g[i];
    }
  }
}

/// Computes y and, in `stats`, (mean, rstd) of each token; if these are known, only y.
Tensor forward(const Tensor& x, const Table& scale, const Table& shift, float one, double eps, at::ScalarType type,
               Tensor& stats) {
  check_internal(x.dim() == 2 && x.is_contiguous(), "ops.layer_norm", "x must be a contiguous [tokens, channels]");
  Tensor y = at::empty(x.sizes(), x.options().dtype(type));
  const bool known = stats.defined();
  if (!known) stats = at::empty({x.size(0), 2}, x.options().dtype(at::kFloat));
  if (x.is_meta()) return y;
  const Values from(x);
  const Results to(y);
  const bool half = from.half() || to.half();
  const int64_t width = x.size(1);
  at::parallel_for(0, x.size(0), kTokenGrain, [&](int64_t begin, int64_t end) {
    each_piece(begin, end, half, kHalfRows, [&](int64_t first, int64_t n) {
      float *a = half ? half_scratch(0, n * width) : nullptr, *b = half ? half_scratch(1, n * width) : nullptr;
      float* out = to.place(first * width, b);
      forward_kernel(from.read(first * width, n * width, a), scale.from(first), shift.from(first), one,
                     static_cast<float>(eps), known, 0, n, width, out, out_data(stats) + 2 * first);
      to.store(first * width, n * width, out);
    });
  });
  return y;
}

Tensor input_gradient(const Tensor& dy, const Tensor& x, const Table& scale, float one, const Tensor& stats) {
  Tensor dx = at::empty_like(x);
  if (x.is_meta()) return dx;
  const Values up(dy), from(x);
  const Results to(dx);
  const bool half = up.half() || from.half();
  const int64_t width = x.size(1);
  at::parallel_for(0, x.size(0), kTokenGrain, [&](int64_t begin, int64_t end) {
    each_piece(begin, end, half, kHalfRows, [&](int64_t first, int64_t n) {
      const int64_t at = first * width, count = n * width;
      float *a = half ? half_scratch(0, count) : nullptr, *b = half ? half_scratch(1, count) : nullptr;
      float* out = to.place(at, half ? half_scratch(2, count) : nullptr);
      input_kernel(up.read(at, count, a), from.read(at, count, b), scale.from(first), one, data(stats) + 2 * first, 0,
                   n, width, out);
      to.store(at, count, out);
    });
  });
  return dx;
}

void table_gradients(const Tensor& dy, const Tensor& x, const Tensor& stats, const int32_t* index, float* dscale,
                     float* dshift) {
  const Values up(dy), from(x);
  const bool half = up.half() || from.half();
  const int64_t width = x.size(1);
  at::parallel_for(0, width, kColumnGrain, [&](int64_t begin, int64_t end) {
    each_piece(0, x.size(0), half, kHalfRows, [&](int64_t first, int64_t n) {
      float *a = half ? half_scratch(0, n * width) : nullptr, *b = half ? half_scratch(1, n * width) : nullptr;
      table_kernel(up.read_columns(first, n, width, begin, end, a), from.read_columns(first, n, width, begin, end, b),
                   data(stats) + 2 * first, index ? index + first : nullptr, n, width, begin, end, dscale, dshift);
    });
  });
}

// Takes pointers only if there is memory behind them.
Table table_of(const Tensor& t) { return t.is_meta() ? Table{nullptr} : Table{data(t)}; }
Table table_of(const Tensor& t, const Tensor& rows) {
  return t.is_meta() ? Table{nullptr} : Table{data(t), t.stride(0), rows.const_data_ptr<int32_t>()};
}

struct LayerNorm : Function<LayerNorm> {
  static Tensor run(const Tensor& x, const WeightSite& w, const WeightSite& b, double eps, at::ScalarType type,
                    Tensor& stats) {
    const auto made = [&w, &b, eps, type](const Tensor& x, Tensor& stats) {
      const Tensor weight = as_floats(w.value), bias = as_floats(b.value);
      return ops::forward(x, table_of(weight), table_of(bias), 0, eps, type, stats);
    };
    const Tensor y = made(x, stats);
    if (Rebuilds* rebuilds = Rebuilds::current())
      rebuilds->register_value(y, {x, stats}, [made](const std::vector<Tensor>& from) {
        Tensor known = from[1];
        return made(from[0], known);
      });
    return y;
  }
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& anchor, Handle w, Handle b, double eps,
                        int64_t type) {
    Tensor stats;
    Tensor y = run(x, *site_of(w), *site_of(b), eps, static_cast<at::ScalarType>(type), stats);
    ctx->saved_data["w"] = w;
    ctx->saved_data["b"] = b;
    ctx->save_for_backward({x, stats});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &stats = saved[1], dy = grads[0].contiguous();
    WeightSite &w = *site_of(ctx, "w"), &b = *site_of(ctx, "b");
    float *dw = accumulating(w), *db = accumulating(b);
    if (dw || db) table_gradients(dy, x, stats, nullptr, dw, db);
    if (!ctx->needs_input_grad(0)) return {{}, {}, {}, {}, {}, {}};
    const Tensor weight = as_floats(w.value);
    return {input_gradient(dy, x, table_of(weight), 0, stats), {}, {}, {}, {}, {}};
  }
};

struct ModulatedNorm : Function<ModulatedNorm> {
  static Tensor run(const Tensor& x, const Tensor& shift, const Tensor& scale, const Tensor& rows, double eps,
                    at::ScalarType type, Tensor& stats) {
    const Tensor y = ops::forward(x, table_of(scale, rows), table_of(shift, rows), 1, eps, type, stats);
    if (Rebuilds* rebuilds = Rebuilds::current())
      rebuilds->register_value(y, {x, shift, scale, rows, stats}, [eps, type](const std::vector<Tensor>& from) {
        Tensor known = from[4];
        return ops::forward(from[0], table_of(from[2], from[3]), table_of(from[1], from[3]), 1, eps, type, known);
      });
    return y;
  }
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& shift, const Tensor& scale,
                        const Tensor& rows, double eps, int64_t type) {
    Tensor stats;
    Tensor y = run(x, shift, scale, rows, eps, static_cast<at::ScalarType>(type), stats);
    ctx->save_for_backward({x, scale, rows, stats});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &scale = saved[1], &rows = saved[2], &stats = saved[3], dy = grads[0].contiguous();
    Tensor dx, dshift, dscale;
    if (ctx->needs_input_grad(1)) dshift = at::zeros(scale.sizes(), scale.options());
    if (ctx->needs_input_grad(2)) dscale = at::zeros(scale.sizes(), scale.options());
    if (!x.is_meta() && (dshift.defined() || dscale.defined()))
      table_gradients(dy, x, stats, rows.const_data_ptr<int32_t>(), dscale.defined() ? out_data(dscale) : nullptr,
                      dshift.defined() ? out_data(dshift) : nullptr);
    if (ctx->needs_input_grad(0)) dx = input_gradient(dy, x, table_of(scale, rows), 1, stats);
    return {dx, dshift, dscale, {}, {}, {}};
  }
};

}  // namespace

Tensor layer_norm(const Tensor& x, WeightSite& weight, WeightSite& bias, double eps, const Tensor& anchor,
                  at::ScalarType type) {
  if (wants_graph({&x, &anchor}))
    return LayerNorm::apply(x, anchor, handle(&weight), handle(&bias), eps, static_cast<int64_t>(type));
  Tensor stats;
  return LayerNorm::run(x, weight, bias, eps, type, stats);
}

Tensor modulated_norm(const Tensor& x, const Tensor& shift, const Tensor& scale, const Tensor& rows, double eps,
                      at::ScalarType type) {
  check_rows(rows, x, scale, "ops.modulated_norm");
  check_rows(rows, x, shift, "ops.modulated_norm");
  if (wants_graph({&x, &shift, &scale}))
    return ModulatedNorm::apply(x, shift, scale, rows, eps, static_cast<int64_t>(type));
  Tensor stats;
  return ModulatedNorm::run(x, shift, scale, rows, eps, type, stats);
}

}  // namespace tessera::ops
