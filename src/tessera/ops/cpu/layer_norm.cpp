// LayerNorm with affine weights, and LayerNorm modulated by rows: y = (x - mean) * rstd * (one + scale[row]) +
// shift[row]. The affine one is the same with one = 0 and a single row. Statistics are fp32; the backward needs x and
// two numbers for each token.
#include <ATen/Parallel.h>

#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/half.h"
#include "tessera/ops/host.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/node.h"

namespace tessera::ops::cpu {

namespace {

constexpr int64_t kNormTokenGrain = 64, kNormColumnGrain = 64;

/// A vector for each token: row index[t] of a table, or the only row.
struct NormTable {
  const float* values;
  int64_t stride = 0;
  const int32_t* index = nullptr;
  const float* of(int64_t t) const { return values + (index ? index[t] * stride : 0); }
  /// the table from token t on
  NormTable from(int64_t t) const { return {values, stride, index ? index + t : nullptr}; }
};

/// `known`: stats are read instead of computed.
TESSERA_KERNEL void layer_norm_kernel(const float* x, NormTable scale, NormTable shift, float one, float eps,
                                      bool known, int64_t begin, int64_t end, int64_t n, float* y, float* stats) {
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

TESSERA_KERNEL void layer_norm_input_kernel(const float* dy, const float* x, NormTable scale, float one,
                                            const float* stats, int64_t begin, int64_t end, int64_t n, float* dx) {
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
TESSERA_KERNEL void layer_norm_table_kernel(const float* dy, const float* x, const float* stats, const int32_t* index,
                                            int64_t tokens, int64_t n, int64_t begin, int64_t end, float* dscale,
                                            float* dshift) {
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

// Takes pointers only if there is memory behind them.
NormTable table_of(const Tensor& t, const RowIndex* rows) {
  if (t.is_meta()) return {nullptr};
  return rows ? NormTable{data(t), t.stride(0), host_pointer<const int32_t>(rows->of_token)} : NormTable{data(t)};
}

}  // namespace

Tensor layer_norm(const Tensor& x, const NormTables& tables, double eps, at::ScalarType type, Tensor& stats) {
  Tensor y = at::empty(x.sizes(), x.options().dtype(type));
  const bool known = stats.defined();
  if (!known) stats = at::empty({x.size(0), 2}, x.options().dtype(at::kFloat));
  if (x.is_meta()) return y;
  const NormTable scale = table_of(tables.scale, tables.rows), shift = table_of(tables.shift, tables.rows);
  const Values from(x);
  const Results to(y);
  const bool half = from.half() || to.half();
  const int64_t width = x.size(1);
  at::parallel_for(0, x.size(0), kNormTokenGrain, [&](int64_t begin, int64_t end) {
    each_piece(begin, end, half, kHalfRows, [&](int64_t first, int64_t n) {
      float *a = half ? half_scratch(0, n * width) : nullptr, *b = half ? half_scratch(1, n * width) : nullptr;
      float* out = to.place(first * width, b);
      layer_norm_kernel(from.read(first * width, n * width, a), scale.from(first), shift.from(first), tables.one,
                        static_cast<float>(eps), known, 0, n, width, out, out_data(stats) + 2 * first);
      to.store(first * width, n * width, out);
    });
  });
  return y;
}

namespace {

Tensor layer_norm_input_gradient(const Tensor& dy, const Tensor& x, const NormTables& tables, const Tensor& stats) {
  Tensor dx = at::empty_like(x);
  if (x.is_meta()) return dx;
  const NormTable scale = table_of(tables.scale, tables.rows);
  const Values up(dy), from(x);
  const Results to(dx);
  const bool half = up.half() || from.half();
  const int64_t width = x.size(1);
  at::parallel_for(0, x.size(0), kNormTokenGrain, [&](int64_t begin, int64_t end) {
    each_piece(begin, end, half, kHalfRows, [&](int64_t first, int64_t n) {
      const int64_t at = first * width, count = n * width;
      float *a = half ? half_scratch(0, count) : nullptr, *b = half ? half_scratch(1, count) : nullptr;
      float* out = to.place(at, half ? half_scratch(2, count) : nullptr);
      layer_norm_input_kernel(up.read(at, count, a), from.read(at, count, b), scale.from(first), tables.one,
                              data(stats) + 2 * first, 0, n, width, out);
      to.store(at, count, out);
    });
  });
  return dx;
}

void add_table_gradients(const Tensor& dy, const Tensor& x, const Tensor& stats, const RowIndex* rows,
                         const NormSums& to) {
  if (x.is_meta()) return;
  const auto& [dscale, dshift] = to;
  const int32_t* index = rows ? host_pointer<const int32_t>(rows->of_token) : nullptr;
  float *scale = dscale.defined() ? out_data(dscale) : nullptr, *shift = dshift.defined() ? out_data(dshift) : nullptr;
  const Values up(dy), from(x);
  const bool half = up.half() || from.half();
  const int64_t width = x.size(1);
  at::parallel_for(0, width, kNormColumnGrain, [&](int64_t begin, int64_t end) {
    each_piece(0, x.size(0), half, kHalfRows, [&](int64_t first, int64_t n) {
      float *a = half ? half_scratch(0, n * width) : nullptr, *b = half ? half_scratch(1, n * width) : nullptr;
      layer_norm_table_kernel(up.read_columns(first, n, width, begin, end, a),
                              from.read_columns(first, n, width, begin, end, b), data(stats) + 2 * first,
                              index ? index + first : nullptr, n, width, begin, end, scale, shift);
    });
  });
}

}  // namespace

Tensor layer_norm_backward(const Tensor& dy, const Tensor& x, const NormTables& tables, const Tensor& stats,
                           const NormSums& sums, bool wanted, const Tensor& beside) {
  if (sums.scale.defined() || sums.shift.defined()) add_table_gradients(dy, x, stats, tables.rows, sums);
  if (!wanted) return {};
  const Tensor dx = layer_norm_input_gradient(dy, x, tables, stats);
  return beside.defined() ? dx.add_(beside) : dx;
}

}  // namespace tessera::ops::cpu
