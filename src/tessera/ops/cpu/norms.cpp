// LayerNorm with affine weights, and LayerNorm modulated by rows: y = (x - mean) * rstd * (one + scale[row]) +
// shift[row]. The affine one is the same with one = 0 and a single row. Statistics are fp32; the backward needs x and
// two numbers for each token.
#include <ATen/Parallel.h>

#include "tessera/ops/half.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/kernel_list.h"
#include "tessera/ops/node.h"
#include "tessera/ops/tensor.h"

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
  const Tensor scales = as_floats(tables.scale), shifts = as_floats(tables.shift);
  if (x.is_meta()) return y;
  const NormTable scale = table_of(scales, tables.rows), shift = table_of(shifts, tables.rows);
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
  const Tensor scales = as_floats(tables.scale);
  if (x.is_meta()) return dx;
  const NormTable scale = table_of(scales, tables.rows);
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
  const Tensor &dscale = to.scale, &dshift = to.shift;
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
  begin(sums.scale, sums.add_scale), begin(sums.shift, sums.add_shift);
  if (sums.scale.defined() || sums.shift.defined()) add_table_gradients(dy, x, stats, tables.rows, sums);
  if (!wanted) return {};
  const Tensor dx = layer_norm_input_gradient(dy, x, tables, stats);
  return beside.defined() ? dx.add_(beside) : dx;
}

// RMSNorm over the full width, optionally followed by the rotary embedding of neighbouring pairs.

namespace {

constexpr int64_t kRmsTokenGrain = 64, kRmsColumnGrain = 64;

/// cos and sin [T, half]; no rotation when half is 0.
struct Rotation {
  const float *cos = nullptr, *sin = nullptr;
  int64_t half = 0;
  Rotation from(int64_t t) const {  ///< the tables from token t on
    return half ? Rotation{cos + t * half, sin + t * half, half} : Rotation{};
  }
};

/// The pairs of columns [begin, end) of a row rotated by its angles (sign 1) or back (sign -1). `to` may be `from`.
[[gnu::always_inline]] inline void rotate(float* to, const float* from, const Rotation& r, float sign, int64_t t,
                                          int64_t begin, int64_t end) {
  const float *c = r.cos + t * r.half, *s = r.sin + t * r.half;
  for (int64_t head = begin; head < end; head += 2 * r.half)
#pragma omp simd
    for (int64_t k = 0; k < r.half; ++k) {
      const float re = from[head + 2 * k], im = from[head + 2 * k + 1], turn = sign * s[k];
      to[head + 2 * k] = re * c[k] - im * turn;
      to[head + 2 * k + 1] = re * turn + im * c[k];
    }
}

TESSERA_KERNEL void squares_kernel(const float* x, int64_t begin, int64_t end, int64_t n, float* sums) {
  for (int64_t t = begin; t < end; ++t) {
    const float* __restrict row = x + t * n;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < n; ++i) squares += row[i] * row[i];
    sums[t] = squares;
  }
}

/// The common term of a row's gradients: sum of dy * w * x, with dy rotated back.
TESSERA_KERNEL void dots_kernel(const float* dy, const float* x, const float* __restrict w, Rotation rotation,
                                int64_t begin, int64_t end, int64_t n, float* rotated, float* sums) {
  for (int64_t t = begin; t < end; ++t) {
    const float* __restrict row = x + t * n;
    const float* from = dy + t * n;
    if (rotation.half) rotate(rotated, from, rotation, -1, t, 0, n), from = rotated;
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < n; ++i) dot += from[i] * w[i] * row[i];
    sums[t] = dot;
  }
}

/// `sums`: squares of whole rows, if the width is sharded; `width`: that of all ranks. `known`: stats are read instead
/// of computed.
TESSERA_KERNEL void rms_norm_kernel(const float* x, const float* __restrict w, Rotation rotation, float eps, bool known,
                                    int64_t begin, int64_t end, int64_t n, float width, const float* sums, float* y,
                                    float* stats) {
  for (int64_t t = begin; t < end; ++t) {
    const float* __restrict row = x + t * n;
    float* __restrict out = y + t * n;
    if (!known) {
      float squares = sums ? sums[t] : 0;
      if (!sums)
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < n; ++i) squares += row[i] * row[i];
      stats[t] = 1 / std::sqrt(squares / width + eps);
    }
    const float rstd = stats[t];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = row[i] * rstd * w[i];
    if (rotation.half) rotate(out, out, rotation, 1, t, 0, n);
  }
}

TESSERA_KERNEL void rms_norm_input_kernel(const float* dy, const float* x, const float* __restrict w, Rotation rotation,
                                          const float* stats, int64_t begin, int64_t end, int64_t n, float width,
                                          const float* sums, float* dx) {
  for (int64_t t = begin; t < end; ++t) {
    const float* __restrict row = x + t * n;
    float* __restrict out = dx + t * n;
    if (rotation.half)
      rotate(out, dy + t * n, rotation, -1, t, 0, n);
    else
      std::memcpy(out, dy + t * n, n * sizeof(float));
    float dot = sums ? sums[t] : 0;
    if (!sums)
#pragma omp simd reduction(+ : dot)
      for (int64_t i = 0; i < n; ++i) dot += out[i] * w[i] * row[i];
    const float rstd = stats[t], back = dot * rstd * rstd * rstd / width;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = out[i] * w[i] * rstd - row[i] * back;
  }
}

/// Columns [begin, end) of dw, in whole heads, over tokens in order.
TESSERA_KERNEL void rms_norm_weight_kernel(const float* dy, const float* x, Rotation rotation, const float* stats,
                                           int64_t tokens, int64_t n, int64_t begin, int64_t end,
                                           float* __restrict dw) {
  for (int64_t t = 0; t < tokens; ++t) {
    const float* __restrict g = dy + t * n, * __restrict row = x + t * n;
    const float rstd = stats[t];
    if (!rotation.half) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) dw[i] += g[i] * row[i] * rstd;
      continue;
    }
    const float* __restrict c = rotation.cos + t * rotation.half, * __restrict s = rotation.sin + t * rotation.half;
    for (int64_t head = begin; head < end; head += 2 * rotation.half)
#pragma omp simd
      for (int64_t k = 0; k < rotation.half; ++k) {
        const int64_t i = head + 2 * k;
        dw[i] += (g[i] * c[k] + g[i + 1] * s[k]) * row[i] * rstd;
        dw[i + 1] += (g[i + 1] * c[k] - g[i] * s[k]) * row[i + 1] * rstd;
      }
  }
}

Rotation rotation_of(const RotaryTables& t) {
  return t.cos.defined() && !t.cos.is_meta() ? Rotation{data(t.cos), data(t.sin), t.cos.size(1)} : Rotation{};
}

/// A sum for each row: sums(first, n, to) computes n of them.
template <typename Sums>
Tensor row_sums(const Tensor& x, const Sums& sums) {
  Tensor total = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  if (!x.is_meta())
    at::parallel_for(0, x.size(0), kRmsTokenGrain, [&](int64_t begin, int64_t end) {
      each_piece(begin, end, is_half(x), kHalfRows,
                 [&](int64_t first, int64_t n) { sums(first, n, out_data(total) + first); });
    });
  return total;
}

}  // namespace

Tensor row_squares(const Tensor& x) {
  const int64_t width = x.size(1);
  return row_sums(x, [&](int64_t first, int64_t n, float* sums) {
    const Values rows(x);
    float* space = rows.half() ? half_scratch(0, n * width) : nullptr;
    squares_kernel(rows.read(first * width, n * width, space), 0, n, width, sums);
  });
}

Tensor rms_norm_dots(const Tensor& dy, const Tensor& x, const Tensor& w, const RotaryTables& rotary, const Tensor& dx) {
  const Rotation rotation = rotation_of(rotary);
  const Tensor weight = as_floats(w);
  return row_sums(x, [&](int64_t first, int64_t n, float* sums) {
    const Values up(dy), from(x);
    const int64_t width = x.size(1), at = first * width, count = n * width;
    const auto space = [&](int which) { return from.half() ? half_scratch(which, count) : nullptr; };
    // A row of dx temporarily stores its rotated-back part of dy.
    float* rotated = Results(dx).place(at, space(2));
    dots_kernel(up.read(at, count, space(0)), from.read(at, count, space(1)), data(weight), rotation.from(first), 0, n,
                width, rotated, sums);
  });
}

Tensor rms_norm(const Tensor& x, const Tensor& w, const RotaryTables& rotary, double eps, int64_t whole_width,
                const Tensor& squares, Tensor& stats) {
  Tensor y = at::empty_like(x);
  const bool known = stats.defined();
  if (!known) stats = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  const Tensor weight = as_floats(w);
  if (x.is_meta()) return y;
  const int64_t width = x.size(1);
  const Values from(x);
  const Results to(y);
  const Rotation rotation = rotation_of(rotary);
  at::parallel_for(0, x.size(0), kRmsTokenGrain, [&](int64_t begin, int64_t end) {
    each_piece(begin, end, from.half(), kHalfRows, [&](int64_t first, int64_t n) {
      const int64_t at = first * width, count = n * width;
      float *a = from.half() ? half_scratch(0, count) : nullptr, *b = from.half() ? half_scratch(1, count) : nullptr;
      float* out = to.place(at, b);
      rms_norm_kernel(from.read(at, count, a), data(weight), rotation.from(first), static_cast<float>(eps), known, 0, n,
                      width, static_cast<float>(whole_width), squares.defined() ? data(squares) + first : nullptr, out,
                      out_data(stats) + first);
      to.store(at, count, out);
    });
  });
  return y;
}

namespace {

void add_weight_gradient(const Tensor& dy, const Tensor& x, const RotaryTables& rotary, const Tensor& stats,
                         const Tensor& dw) {
  if (x.is_meta()) return;
  const Rotation rotation = rotation_of(rotary);
  const int64_t n = x.size(1), step = rotation.half ? 2 * rotation.half : std::min(n, kRmsColumnGrain);
  const Values up(dy), from(x);
  at::parallel_for(0, div_up(n, step), div_up(kRmsColumnGrain, step), [&](int64_t begin, int64_t end) {
    const int64_t left = begin * step, right = std::min(n, end * step);
    each_piece(0, x.size(0), from.half(), kHalfRows, [&](int64_t first, int64_t rows) {
      float *a = from.half() ? half_scratch(0, rows * n) : nullptr,
            *b = from.half() ? half_scratch(1, rows * n) : nullptr;
      rms_norm_weight_kernel(up.read_columns(first, rows, n, left, right, a),
                             from.read_columns(first, rows, n, left, right, b), rotation.from(first),
                             data(stats) + first, rows, n, left, right, out_data(dw));
    });
  });
}

void input_gradient(const Tensor& dy, const Tensor& x, const Tensor& w, const RotaryTables& rotary, const Tensor& stats,
                    int64_t whole_width, const Tensor& dots, const Tensor& dx) {
  const Tensor weight = as_floats(w);
  if (x.is_meta()) return;
  const Rotation rotation = rotation_of(rotary);
  const Values up(dy), from(x);
  const Results to(dx);
  const int64_t width = x.size(1);
  at::parallel_for(0, x.size(0), kRmsTokenGrain, [&](int64_t begin, int64_t end) {
    each_piece(begin, end, from.half(), kHalfRows, [&](int64_t first, int64_t n) {
      const int64_t at = first * width, count = n * width;
      float *a = from.half() ? half_scratch(0, count) : nullptr, *b = from.half() ? half_scratch(1, count) : nullptr;
      float* out = to.place(at, from.half() ? half_scratch(2, count) : nullptr);
      rms_norm_input_kernel(up.read(at, count, a), from.read(at, count, b), data(weight), rotation.from(first),
                            data(stats) + first, 0, n, width, static_cast<float>(whole_width),
                            dots.defined() ? data(dots) + first : nullptr, out);
      to.store(at, count, out);
    });
  });
}

}  // namespace

void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const RotaryTables& rotary,
                       const Tensor& stats, int64_t width, const Tensor& dots, const Tensor& dx, const Tensor& dw,
                       bool add, Tensor* /*columns*/) {
  begin(dw, add);
  if (dw.defined()) add_weight_gradient(dy, x, rotary, stats, dw);
  if (dx.defined()) input_gradient(dy, x, w, rotary, stats, width, dots, dx);
}

}  // namespace tessera::ops::cpu
