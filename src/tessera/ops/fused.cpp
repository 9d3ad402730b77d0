#include "tessera/ops/fused.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "tessera/ops/eight_bit.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/widen.h"

namespace tessera::ops {

namespace {

constexpr int64_t kLane = 8, kThreads = 256, kWarp = 32;

at::ScalarType type_of(Form form) { return form == Form::bf16 ? at::kBFloat16 : at::kHalf; }

/// The first `count` values of row `t` as fp32: where they lie, or widened into `space`.
const float* row_of(const RowsIn& rows, int64_t t, int64_t width, int64_t count, float* space) {
  if (rows.form == Form::fp32) return static_cast<const float*>(rows.data) + t * width;
  widen(space, static_cast<const uint16_t*>(rows.data) + t * width, type_of(rows.form), count);
  return space;
}
const float* row_of(const RowsIn& rows, int64_t t, int64_t width, float* space) {
  return row_of(rows, t, width, width, space);
}
void store_row(const RowsOut& rows, int64_t t, int64_t width, const float* values) {
  if (rows.form == Form::fp32)
    std::copy_n(values, width, static_cast<float*>(rows.data) + t * width);
  else
    narrow(static_cast<uint16_t*>(rows.data) + t * width, values, type_of(rows.form), width);
}

/// [Note: order of sums in rows]
float row_sum(const float* values, int64_t width) {
  float threads[kThreads] = {};
  for (int64_t c = 0; c < width; c += kLane) {
    float& own = threads[c / kLane % kThreads];
    for (int64_t i = c; i < std::min(c + kLane, width); ++i) own += values[i];
  }
  float total = 0;
  for (int64_t first = 0; first < kThreads; first += kWarp) {
    float* warp = threads + first;
    for (int64_t step = kWarp / 2; step > 0; step /= 2)
      for (int64_t i = 0; i < step; ++i) warp[i] += warp[i + step];
    total = first == 0 ? warp[0] : total + warp[0];
  }
  return total;
}

/// A token's row of a table: where it lies, or widened into `space`.
const float* table_row(const RowTable& table, const TableRuns& runs, int64_t t, int64_t width, float* space) {
  int i = 0;
  while (runs.at[i].end <= t) ++i;
  return row_of(table.row(runs.at[i].row), 0, width, space);
}

/// Room for `count` rows.
class Space {
 public:
  Space(int64_t count, int64_t width) : width_(width), values_(static_cast<size_t>(count * width)) {}
  float* row(int64_t i) { return values_.data() + i * width_; }

 private:
  int64_t width_;
  std::vector<float> values_;
};

/// Calls body(t, space) for each token, on several threads.
template <class Body>
void each_token(int64_t tokens, int64_t width, int64_t rows_of_space, const Body& body) {
  at::parallel_for(0, tokens, kGroupTokens, [&](int64_t begin, int64_t end) {
    Space space(rows_of_space, width);
    for (int64_t t = begin; t < end; ++t) body(t, space);
  });
}

/// Calls body(group, row of the table, first token, last token + 1, space) for each group, on several threads.
template <class Body>
void each_group(const TableRuns& runs, int64_t width, int64_t rows_of_space, const Body& body) {
  at::parallel_for(0, runs.groups, 1, [&](int64_t first, int64_t last) {
    Space space(rows_of_space, width);
    for (int64_t g = first; g < last; ++g) {
      int i = 0;
      while (i + 1 < runs.count && runs.at[i + 1].groups <= g) ++i;
      const TableRuns::Run& run = runs.at[i];
      const int64_t begin = run.begin + (g - run.groups) * kGroupTokens;
      body(g, run.row, begin, std::min<int64_t>(begin + kGroupTokens, run.end), space);
    }
  });
}

void add_groups(const TableSums& sums, const TableRuns& runs, int64_t width) {
  if (!sums.table) return;
  for (int64_t r = 0; r < sums.fresh; ++r) std::fill_n(sums.table + r * sums.stride, width, 0.0f);
  for (int r = 0; r < runs.count; ++r) {
    float* to = sums.table + runs.at[r].row * sums.stride;
    const int64_t end = r + 1 < runs.count ? runs.at[r + 1].groups : runs.groups;
    for (int64_t i = 0; i < width; ++i) {
      float total = 0;
      for (int64_t g = runs.at[r].groups; g < end; ++g) total += sums.partials[g * width + i];
      to[i] += total;
    }
  }
}

/// A group's sums of columns, which begin at zero; null where none are wanted.
float* columns_of(float* all, int64_t group, int64_t width) {
  if (!all) return nullptr;
  std::fill_n(all + group * width, width, 0.0f);
  return all + group * width;
}

/// The groups of sums over all tokens.
TableRuns all_of(int64_t tokens) {
  TableRuns runs;
  if (tokens > 0) runs.add(0, 0, tokens);
  return runs;
}

/// The pairs of a row turned; `to` may be `from`.
void turn(float* to, const float* from, const Angles& a, int64_t t, int64_t width, bool half_split, float sign) {
  const float *cos = a.cos + t * a.half, *sin = a.sin + t * a.half;
  const int64_t apart = half_split ? a.half : 1, step = half_split ? 1 : 2;
  for (int64_t head = 0; head < width; head += 2 * a.half)
    for (int64_t k = 0; k < a.half; ++k) {
      const int64_t i = head + k * step;
      const float re = from[i], im = from[i + apart], s = sign * sin[k];
      to[i] = re * cos[k] - im * s;
      to[i + apart] = re * s + im * cos[k];
    }
}

}  // namespace

void add_sums(const ManyGroupSums& all) {
  for (int s = 0; s < all.count; ++s) {
    const GroupSums& sum = all.at[s];
    std::vector<float> total(static_cast<size_t>(sum.width)), space(total.size());
    for (int64_t g = 0; g < sum.groups; ++g) {
      const float* values = row_of(sum.values, g, sum.width, space.data());
      for (int64_t i = 0; i < sum.width; ++i) total[static_cast<size_t>(i)] += values[i];
    }
    for (int64_t i = 0; i < sum.width; ++i) sum.to[i] = (sum.fresh ? 0.0f : sum.to[i]) + total[static_cast<size_t>(i)];
  }
}

void layer_norm(const LayerNormRows& n) {
  each_token(n.tokens, n.width, 4, [&](int64_t t, Space& space) {
    const float* x = row_of(n.x, t, n.width, space.row(0));
    float *y = space.row(1), *stats = n.stats + 2 * t;
    if (!n.known) {
      const auto width = static_cast<float>(n.width);
      stats[0] = row_sum(x, n.width) / width;
      for (int64_t i = 0; i < n.width; ++i) y[i] = (x[i] - stats[0]) * (x[i] - stats[0]);
      stats[1] = 1.0f / std::sqrt(row_sum(y, n.width) / width + n.eps);
    }
    const float *scale = table_row(n.scale, n.runs, t, n.width, space.row(2)),
                *shift = table_row(n.shift, n.runs, t, n.width, space.row(3)), mean = stats[0], rstd = stats[1];
    for (int64_t i = 0; i < n.width; ++i) y[i] = (x[i] - mean) * rstd * (n.one + scale[i]) + shift[i];
    store_row(n.y, t, n.width, y);
  });
}

void layer_norm_gradients(const LayerNormGradients& n) {
  each_group(n.runs, n.width, 6, [&](int64_t group, int64_t row, int64_t begin, int64_t end, Space& space) {
    float *normal = space.row(2), *weighted = space.row(3), *out = space.row(4);
    float* dscale = n.scale_sums.partials ? n.scale_sums.partials + group * n.width : nullptr;
    float* dshift = dscale ? n.shift_sums.partials + group * n.width : nullptr;
    if (dscale) std::fill_n(dscale, n.width, 0.0f), std::fill_n(dshift, n.width, 0.0f);
    const float* scale = row_of(n.scale.row(row), 0, n.width, space.row(5));
    for (int64_t t = begin; t < end; ++t) {
      const float *dy = row_of(n.dy, t, n.width, space.row(0)), *x = row_of(n.x, t, n.width, space.row(1)),
                  mean = n.stats[2 * t], rstd = n.stats[2 * t + 1];
      for (int64_t i = 0; i < n.width; ++i) {
        normal[i] = (x[i] - mean) * rstd;
        weighted[i] = dy[i] * (n.one + scale[i]);
        out[i] = weighted[i] * normal[i];
      }
      for (int64_t i = 0; dscale && i < n.width; ++i) dscale[i] += dy[i] * normal[i], dshift[i] += dy[i];
      if (!n.dx.data) continue;
      const auto width = static_cast<float>(n.width);
      const float sum = row_sum(weighted, n.width) / width, dot = row_sum(out, n.width) / width;
      const float* beside = n.beside.data ? row_of(n.beside, t, n.width, space.row(0)) : nullptr;
      for (int64_t i = 0; i < n.width; ++i) {
        out[i] = (weighted[i] - sum - normal[i] * dot) * rstd;
        if (beside) out[i] += beside[i];
      }
      store_row(n.dx, t, n.width, out);
    }
  });
  add_groups(n.scale_sums, n.runs, n.width);
  add_groups(n.shift_sums, n.runs, n.width);
}

void rms_norm(const RmsNormRows& n) {
  each_token(n.tokens, n.width, 3, [&](int64_t t, Space& space) {
    const float *x = row_of(n.x, t, n.width, space.row(0)), *w = row_of(n.w, 0, n.width, space.row(2));
    float* y = space.row(1);
    if (!n.known) {
      for (int64_t i = 0; i < n.width; ++i) y[i] = x[i] * x[i];
      n.stats[t] = 1.0f / std::sqrt((n.squares ? n.squares[t] : row_sum(y, n.width)) / n.whole + n.eps);
    }
    const float rstd = n.stats[t];
    for (int64_t i = 0; i < n.width; ++i) y[i] = x[i] * rstd * w[i];
    if (n.angles.half) turn(y, y, n.angles, t, n.width, false, 1);
    store_row(n.y, t, n.width, y);
  });
}

void rms_norm_gradients(const RmsNormGradients& n) {
  const TableRuns runs = all_of(n.tokens);
  each_group(runs, n.width, 5, [&](int64_t group, int64_t, int64_t begin, int64_t end, Space& space) {
    float *turned = space.row(2), *out = space.row(3),
          *dw = n.sums.partials ? n.sums.partials + group * n.width : nullptr,
          *columns = columns_of(n.columns, group, n.width);
    const float* w = row_of(n.w, 0, n.width, space.row(4));
    if (dw) std::fill_n(dw, n.width, 0.0f);
    for (int64_t t = begin; t < end; ++t) {
      const float *g = row_of(n.dy, t, n.width, space.row(0)), *x = row_of(n.x, t, n.width, space.row(1)),
                  rstd = n.stats[t];
      if (n.angles.half) turn(turned, g, n.angles, t, n.width, false, -1), g = turned;
      for (int64_t i = 0; dw && i < n.width; ++i) dw[i] += g[i] * x[i] * rstd;
      if (!n.dx.data) continue;
      for (int64_t i = 0; i < n.width; ++i) out[i] = g[i] * w[i] * x[i];
      const float dot = n.dots ? n.dots[t] : row_sum(out, n.width), back = dot * rstd * rstd * rstd / n.whole;
      for (int64_t i = 0; i < n.width; ++i) out[i] = g[i] * w[i] * rstd - x[i] * back;
      for (int64_t i = 0; columns && i < n.width; ++i) columns[i] += out[i];
      store_row(n.dx, t, n.width, out);
    }
  });
  add_groups(n.sums, runs, n.width);
}

void gated_sum(const GatedRows& n) {
  each_token(n.tokens, n.width, 4, [&](int64_t t, Space& space) {
    const float *x = row_of(n.x, t, n.width, space.row(0)), *y = row_of(n.y, t, n.width, space.row(1)),
                *gate = n.gate.values ? table_row(n.gate, n.runs, t, n.width, space.row(3)) : nullptr;
    float* out = space.row(2);
    for (int64_t i = 0; i < n.width; ++i) out[i] = x[i] + (gate ? y[i] * gate[i] : y[i]);
    store_row(n.out, t, n.width, out);
    if (n.rounded.data) store_row(n.rounded, t, n.width, out);
  });
}

void gated_gradients(const GatedGradients& n) {
  each_group(n.runs, n.width, 4, [&](int64_t group, int64_t row, int64_t begin, int64_t end, Space& space) {
    float *out = space.row(2), *dgate = n.sums.partials ? n.sums.partials + group * n.width : nullptr,
          *columns = columns_of(n.columns, group, n.width);
    if (dgate) std::fill_n(dgate, n.width, 0.0f);
    const float* gate = n.gate.values ? row_of(n.gate.row(row), 0, n.width, space.row(3)) : nullptr;
    for (int64_t t = begin; t < end; ++t) {
      const float *up = row_of(n.up, t, n.width, space.row(0)),
                  *y = dgate ? row_of(n.y, t, n.width, space.row(1)) : nullptr;
      for (int64_t i = 0; dgate && i < n.width; ++i) dgate[i] += up[i] * y[i];
      if (!n.dy.data) continue;
      for (int64_t i = 0; i < n.width; ++i) out[i] = gate ? up[i] * gate[i] : up[i];
      for (int64_t i = 0; columns && i < n.width; ++i) columns[i] += out[i];
      store_row(n.dy, t, n.width, out);
    }
  });
  add_groups(n.sums, n.runs, n.width);
}

namespace {

constexpr float kTwoRoot = 1.5957691216057308f, kCubic = 0.044715f;  // 2 sqrt(2 / pi)

/// sigmoid(2 u) of GELU's u(x): with one exponential and without cancellation.
float gelu_gate(float x) { return 1 / (1 + exp_fast(-kTwoRoot * (x + kCubic * x * x * x))); }

}  // namespace

void gelu(const GeluRows& n) {
  constexpr int64_t kAtOnce = 2048;
  at::parallel_for(0, (n.values + kAtOnce - 1) / kAtOnce, 8, [&](int64_t begin, int64_t end) {
    Space space(1, kAtOnce);
    for (int64_t at = begin * kAtOnce; at < std::min(end * kAtOnce, n.values); at += kAtOnce) {
      const int64_t count = std::min(kAtOnce, n.values - at);
      const auto bytes = [at](Form form) { return at * (form == Form::fp32 ? 4 : 2); };
      float* y = space.row(0);
      const float* x = row_of({static_cast<const char*>(n.x.data) + bytes(n.x.form), n.x.form}, 0, count, y);
      for (int64_t i = 0; i < count; ++i) y[i] = x[i] * gelu_gate(x[i]);
      store_row({static_cast<char*>(n.y.data) + bytes(n.y.form), n.y.form}, 0, count, y);
    }
  });
}

void gelu_gradients(const GeluGradients& n) {
  each_group(all_of(n.tokens), n.width, 4, [&](int64_t group, int64_t, int64_t begin, int64_t end, Space& space) {
    float *slope = space.row(2), *y = space.row(3), *columns = columns_of(n.columns, group, n.width);
    for (int64_t t = begin; t < end; ++t) {
      const float *dy = row_of(n.dy, t, n.width, space.row(0)), *x = row_of(n.x, t, n.width, space.row(1));
      for (int64_t i = 0; i < n.width; ++i) {
        const float gate = gelu_gate(x[i]);
        y[i] = x[i] * gate;
        slope[i] = dy[i] * (gate + y[i] * (1 - gate) * kTwoRoot * (1 + 3 * kCubic * x[i] * x[i]));
      }
      for (int64_t i = 0; columns && i < n.width; ++i) columns[i] += slope[i];
      store_row(n.dx, t, n.width, slope);
      if (n.y.data) store_row(n.y, t, n.width, y);
    }
  });
}

namespace {

float sigmoid(float x) { return 1 / (1 + exp_fast(-x)); }
float silu_slope(float x) {
  const float s = sigmoid(x);
  return s * (1 + x * (1 - s));
}

/// Calls body(first value, count, space) for parts of `values` values in a row, on several threads.
template <class Body>
void each_stretch(int64_t values, int64_t rows_of_space, const Body& body) {
  constexpr int64_t kAtOnce = 2048;
  at::parallel_for(0, div_up(values, kAtOnce), 8, [&](int64_t begin, int64_t end) {
    Space space(rows_of_space, kAtOnce);
    for (int64_t at = begin * kAtOnce; at < std::min(end * kAtOnce, values); at += kAtOnce)
      body(at, std::min(kAtOnce, values - at), space);
  });
}
/// The same from its value `at` on.
RowsIn behind(const RowsIn& rows, int64_t at) {
  return {static_cast<const char*>(rows.data) + at * (rows.form == Form::fp32 ? 4 : 2), rows.form};
}
RowsOut behind(const RowsOut& rows, int64_t at) {
  return {static_cast<char*>(rows.data) + at * (rows.form == Form::fp32 ? 4 : 2), rows.form};
}

}  // namespace

void silu_glu(const GluRows& n) {
  each_stretch(n.values, 3, [&](int64_t at, int64_t count, Space& space) {
    const float *x = row_of(behind(n.x, at), 0, count, space.row(0)),
                *gate = row_of(behind(n.gate, at), 0, count, space.row(1));
    float* y = space.row(2);
    for (int64_t i = 0; i < count; ++i) y[i] = x[i] * (gate[i] * sigmoid(gate[i]));
    store_row(behind(n.y, at), 0, count, y);
  });
}

void silu_glu_gradients(const GluGradients& n) {
  each_stretch(n.values, 5, [&](int64_t at, int64_t count, Space& space) {
    const float *dy = row_of(behind(n.dy, at), 0, count, space.row(0)),
                *x = row_of(behind(n.x, at), 0, count, space.row(1)),
                *gate = row_of(behind(n.gate, at), 0, count, space.row(2));
    float *dx = space.row(3), *dgate = space.row(4);
    for (int64_t i = 0; i < count; ++i) {
      dx[i] = dy[i] * (gate[i] * sigmoid(gate[i]));
      dgate[i] = dy[i] * x[i] * silu_slope(gate[i]);
    }
    store_row(behind(n.dx, at), 0, count, dx);
    store_row(behind(n.dgate, at), 0, count, dgate);
  });
}

void depthwise(const DepthwiseRows& n) {
  const int64_t taps = n.table.taps, rows = n.table.rows;
  Space all(taps + 2, n.width);
  float *w = all.row(0), *bias = all.row(taps), *flat = all.row(taps + 1);
  for (int64_t t = 0; t < taps; ++t) {  // each part of a row of [width * taps]
    const float* part = row_of(n.w, t, n.width, flat);
    for (int64_t i = 0; i < n.width; ++i) w[(t * n.width + i) % taps * n.width + (t * n.width + i) / taps] = part[i];
  }
  if (n.bias.data)
    std::copy_n(row_of(n.bias, 0, n.width, flat), n.width, bias);
  else
    std::fill_n(bias, n.width, 0.0f);
  each_group(all_of(rows), n.width, 4, [&](int64_t group, int64_t, int64_t begin, int64_t end, Space& space) {
    float *y = space.row(1), *d_value = space.row(3), *columns = columns_of(n.columns, group, n.width);
    for (int64_t r = begin; r < end; ++r) {
      std::copy_n(bias, n.width, y);
      for (int64_t t = 0; t < taps; ++t) {
        const int64_t source = n.table.source[t * rows + r];
        if (source < 0) continue;
        const float* x = row_of(n.x, source, n.width, space.row(0));
        for (int64_t i = 0; i < n.width; ++i) y[i] += (n.silu ? x[i] * sigmoid(x[i]) : x[i]) * w[t * n.width + i];
      }
      if (n.through.data) {
        const float* through = row_of(n.through, r, n.width, space.row(0));
        for (int64_t i = 0; i < n.width; ++i) y[i] *= silu_slope(through[i]);
      }
      if (n.value.data) {
        const float *value = row_of(n.value, r, n.width, space.row(0)),
                    *up = n.up.data ? row_of(n.up, r, n.width, space.row(2)) : nullptr;
        for (int64_t i = 0; i < n.width; ++i) {
          const float gate = y[i] * sigmoid(y[i]);
          d_value[i] = up ? up[i] * gate : 0;
          y[i] = up ? up[i] * value[i] * silu_slope(y[i]) : value[i] * gate;
        }
        if (up) store_row(n.d_value, r, n.width, d_value);
      }
      for (int64_t i = 0; columns && i < n.width; ++i) columns[i] += y[i];
      store_row(n.y, r, n.width, y);
    }
  });
}

void depthwise_gradients(const DepthwiseGradients& n) {
  const int64_t taps = n.table.taps, rows = n.table.rows, size = (taps + 1) * n.width;
  each_group(all_of(rows), n.width, 2, [&](int64_t group, int64_t, int64_t begin, int64_t end, Space& space) {
    float *dw = n.partials + group * size, *db = dw + taps * n.width;
    std::fill_n(dw, size, 0.0f);
    for (int64_t r = begin; r < end; ++r) {
      const float* dy = row_of(n.dy, r, n.width, space.row(0));
      for (int64_t i = 0; i < n.width; ++i) db[i] += dy[i];
      for (int64_t t = 0; t < taps; ++t) {
        const int64_t source = n.table.source[t * rows + r];
        if (source < 0) continue;
        const float* x = row_of(n.x, source, n.width, space.row(1));
        for (int64_t i = 0; i < n.width; ++i) dw[t * n.width + i] += dy[i] * (n.silu ? x[i] * sigmoid(x[i]) : x[i]);
      }
    }
  });
  for (int64_t i = 0; i < size; ++i) {
    float total = 0;
    for (int64_t g = 0; g < n.groups(); ++g) total += n.partials[g * size + i];
    const int64_t tap = i / n.width, column = i % n.width;
    if (tap < taps && n.dw) n.dw[column * taps + tap] += total;
    if (tap == taps && n.db) n.db[column] += total;
  }
}

void invert_taps(const InvertedTaps& n) {
  const TapTable& table = n.table;
  std::fill_n(n.inverse, table.taps * table.sources, -1);
  for (int64_t t = 0; t < table.taps; ++t)
    for (int64_t r = 0; r < table.rows; ++r)
      if (const int64_t source = table.source[t * table.rows + r]; source >= 0)
        n.inverse[t * table.sources + source] = static_cast<int32_t>(r);
}

namespace {

constexpr int64_t kStateRows = kStateHead + 1, kStateValues = kStateRows * kStateHead;

/// Calls body(token, head, first channel, place in [tokens, heads], row of space) for each token's heads, on several threads.
template <class Body>
void each_head(int64_t tokens, int64_t heads, const Body& body) {
  each_token(tokens, heads * kStateHead, 5, [&](int64_t t, Space& space) {
    for (int64_t h = 0; h < heads; ++h) body(t, h, space, t * heads + h);
  });
}
/// A head of a row, as fp32 in a row of space, or where it lies.
const float* head_of(const RowsIn& rows, int64_t place, float* space) { return row_of(rows, place, kStateHead, space); }
void store_head(const RowsOut& rows, int64_t place, const float* values) { store_row(rows, place, kStateHead, values); }

float positive(float x) { return x <= 0 ? 0 : x; }  // NaN stays
/// `values` where x is above 0, and 0 elsewhere.
void keep_where_positive(float* values, const float* x) {
  for (int64_t i = 0; i < kStateHead; ++i) values[i] = x[i] <= 0 ? 0 : values[i];
}
/// The same as max(0, x), in `space`.
const float* positive_head(const RowsIn& rows, int64_t place, float* space) {
  const float* from = head_of(rows, place, space);
  for (int64_t i = 0; i < kStateHead; ++i) space[i] = positive(from[i]);
  return space;
}

/// The state of a token's head.
const float* state_of(const RowTable& states, const TableRuns& runs, int64_t t, int64_t head) {
  return table_row(states, runs, t, kStateValues, nullptr) + head * kStateValues;
}

/// x times the products of a state, or times them transposed.
void times_products(float* out, const float* x, const float* state) {
  std::fill_n(out, kStateHead, 0.0f);
  for (int64_t a = 0; a < kStateHead; ++a)
    for (int64_t b = 0; b < kStateHead; ++b) out[b] += x[a] * state[a * kStateHead + b];
}
void times_transposed(float* out, const float* x, const float* state) {
  for (int64_t a = 0; a < kStateHead; ++a) {
    out[a] = 0;
    for (int64_t b = 0; b < kStateHead; ++b) out[a] += x[b] * state[a * kStateHead + b];
  }
}

}  // namespace

void add_states(const StateSums& n) {
  const int64_t width = n.heads * kStateValues;
  each_group(n.runs, kStateHead, 3, [&](int64_t group, int64_t, int64_t begin, int64_t end, Space& space) {
    float *up = space.row(1), *last = space.row(2);
    std::fill_n(n.sums.partials + group * width, width, 0.0f);
    for (int64_t t = begin; t < end; ++t)
      for (int64_t h = 0; h < n.heads; ++h) {
        const int64_t place = t * n.heads + h;
        float* state = n.sums.partials + group * width + h * kStateValues;
        const float *b = head_of(n.b, place, up), *c = positive_head(n.c.data ? n.c : n.a, place, last);
        for (int64_t i = 0; i < kStateHead; ++i) {
          up[i] = n.down ? b[i] / n.down[place] : b[i];
          state[kStateHead * kStateHead + i] += n.slope ? c[i] * n.slope[place] : c[i];
        }
        const float* a = n.c.data ? head_of(n.a, place, space.row(0)) : c;
        for (int64_t i = 0; i < kStateHead; ++i)
          for (int64_t j = 0; j < kStateHead; ++j) state[i * kStateHead + j] += a[i] * up[j];
      }
  });
  add_groups(n.sums, n.runs, width);
}

void state_results(const StateResults& n) {
  each_head(n.tokens, n.heads, [&](int64_t t, int64_t h, Space& space, int64_t place) {
    const float* state = state_of(n.states, n.runs, t, h);
    float *out = space.row(1), down = 0;
    const float* q = positive_head(n.q, place, space.row(2));
    times_products(out, n.rotated.data ? head_of(n.rotated, place, space.row(0)) : q, state);
    const float* last = state + kStateHead * kStateHead;
    for (int64_t i = 0; i < kStateHead; ++i) down += q[i] * last[i];
    down += n.eps;
    constexpr float kLargestHalf = 65504;
    for (int64_t i = 0; i < kStateHead; ++i) {
      out[i] /= down;
      if (n.out.form == Form::fp16)
        out[i] = out[i] > kLargestHalf ? kLargestHalf : out[i] < -kLargestHalf ? -kLargestHalf : out[i];
    }
    store_head(n.out, place, out);
    n.down[place] = down;
  });
}

void state_gradients(const StateGradients& n) {
  each_head(n.tokens, n.heads, [&](int64_t t, int64_t h, Space& space, int64_t place) {
    const float *state = state_of(n.states, n.runs, t, h), *last = state + kStateHead * kStateHead;
    float *db = space.row(1), *da = space.row(2);
    const bool both = !n.dc.data;
    times_products(db, both ? positive_head(n.a, place, space.row(3)) : head_of(n.a, place, space.row(0)), state);
    times_transposed(da, head_of(n.b, place, space.row(0)), state);
    store_head(n.db, place, db);
    if (both) {
      for (int64_t i = 0; i < kStateHead; ++i) da[i] += last[i];
      keep_where_positive(da, head_of(n.a, place, space.row(0)));
    } else {
      float* dc = std::copy_n(last, kStateHead, space.row(3)) - kStateHead;
      keep_where_positive(dc, head_of(n.c, place, space.row(0)));
      store_head(n.dc, place, dc);
    }
    store_head(n.da, place, da);
  });
}

void state_result_gradients(const StateResultGradients& n) {
  each_head(n.tokens, n.heads, [&](int64_t t, int64_t h, Space& space, int64_t place) {
    const float* state = state_of(n.states, n.runs, t, h);
    const float *dy = head_of(n.dy, place, space.row(0)), *out = head_of(n.out, place, space.row(1));
    float *up = space.row(2), *dq = space.row(3), *rotated = space.row(4), slope = 0;
    for (int64_t i = 0; i < kStateHead; ++i) {
      up[i] = dy[i] / n.down[place];
      slope -= up[i] * out[i];
    }
    times_transposed(rotated, up, state);
    for (int64_t i = 0; i < kStateHead; ++i) {
      dq[i] = state[kStateHead * kStateHead + i] * slope;
      if (!n.rotated.data) dq[i] += rotated[i];
    }
    if (n.rotated.data) store_head(n.rotated, place, rotated);
    keep_where_positive(dq, head_of(n.q, place, space.row(0)));
    store_head(n.dq, place, dq);
    n.slope[place] = slope;
  });
}

void rotate_rows(const RotatedRows& n) {
  each_token(n.tokens, n.width, 2, [&](int64_t t, Space& space) {
    const float* x = row_of(n.x, t, n.width, space.row(0));
    turn(space.row(1), x, n.angles, t, n.width, n.half_split, n.sign);
    store_row(n.y, t, n.width, space.row(1));
  });
}

namespace {

/// Of one line of values and its codes.
struct LostValues {
  int64_t zeros = 0, clipped = 0;

  void add(const float* values, const uint8_t* codes, int64_t count, float beyond) {
    for (int64_t i = 0; i < count; ++i) {
      zeros += (codes[i] & 0x7f) == 0 && values[i] != 0;
      clipped += std::fabs(values[i]) > beyond;
    }
  }
};

void add_to(double& sum, int64_t count) { std::atomic_ref(sum).fetch_add(static_cast<double>(count)); }  // exact

}  // namespace

void quantise_lines(const QuantisedLines& n) {
  const int64_t length = n.length();
  const Fp8Tiles one{.rows = 1,
                     .cols = length,
                     .tile_rows = 1,
                     .tile_cols = std::max<int64_t>(length, 1),
                     .format = n.e5m2 ? DType::f8_e5m2 : DType::f8_e4m3};
  // Columns are read some at a time, so that each row of x is read by whole cache lines.
  const int64_t together = n.turned ? 16 : 1;
  at::parallel_for(0, div_up(n.lines(), together), 1, [&](int64_t begin, int64_t end) {
    Space space(together + 1, std::max(length, n.width));
    LostValues lost;
    for (int64_t first = begin * together; first < std::min(end * together, n.lines()); first += together) {
      const int64_t count = std::min(together, n.lines() - first);
      for (int64_t t = 0; n.turned && t < n.rows; ++t) {
        const float* row =
            row_of({static_cast<const char*>(n.x.data) + first * (n.x.form == Form::fp32 ? 4 : 2), n.x.form}, t,
                   n.width, count, space.row(together));
        for (int64_t c = 0; c < count; ++c) space.row(c)[t] = row[c];
      }
      for (int64_t c = 0; c < count; ++c) {
        uint8_t* codes = n.codes + (first + c) * n.stride;
        n.scales[first + c] = 1e-12f;  // of a line without values
        const float* values = n.turned ? space.row(c) : row_of(n.x, first, n.width, space.row(0));
        quantise_fp8(codes, n.scales + first + c, values, one);
        std::fill(codes + length, codes + n.stride, uint8_t{0});
        if (n.counts) lost.add(values, codes, length, kBeyondFp8 * n.scales[first + c] * largest(one.format));
      }
    }
    if (n.counts) add_to(n.counts[1], lost.zeros), add_to(n.counts[2], lost.clipped);
  });
  if (n.counts) add_to(n.counts[0], n.rows * n.width);
}

namespace {

/// `count` values from the `at`-th of those that are here.
void read_flat(float* values, const FlatLines& n, int64_t at, int64_t count) {
  if (n.x.form != Form::fp32)
    return widen(values, static_cast<const uint16_t*>(n.x.data) + at,
                 n.x.form == Form::bf16 ? at::kBFloat16 : at::kHalf, count);
  const float* x = static_cast<const float*>(n.x.data) + at;
  for (int64_t i = 0; i < count; ++i)
    values[i] = std::bit_cast<float>((std::bit_cast<uint32_t>(x[i]) + 0x8000u) & 0xffff0000u);
}

/// What of a row, in columns [from, to), is here: calls take(values, n, column).
template <class Take>
void of_row(const FlatLines& n, int64_t row, int64_t from, int64_t to, std::vector<float>& values, const Take& take) {
  const int64_t begin = std::max(row * n.width + from, n.first), end = std::min(row * n.width + to, n.first + n.count);
  if (begin >= end) return;
  values.resize(static_cast<size_t>(to - from));
  read_flat(values.data(), n, begin - n.first, end - begin);
  take(begin - n.first, end - begin, begin - row * n.width);
}

float magnitude(const std::vector<float>& values, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, std::fabs(values[static_cast<size_t>(i)]));
  return most;
}

}  // namespace

void flat_scales(const FlatLines& n) {
  constexpr int64_t kTogether = 64;  // columns
  const int64_t top = n.first_row(), parts = n.columns ? div_up(n.width, kTogether) : n.rows();
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> values;
    for (int64_t part = begin; part < end; ++part) {
      if (!n.columns) {
        float most = 0;
        of_row(n, top + part, 0, n.width, values,
               [&](int64_t, int64_t count, int64_t) { most = magnitude(values, count); });
        n.scales[part] = fp8_scale(most, DType::f8_e4m3);
        continue;
      }
      const int64_t from = part * kTogether, to = std::min(from + kTogether, n.width);
      std::fill(n.scales + from, n.scales + to, 0.0f);
      for (int64_t row = top; row < top + n.rows(); ++row)
        of_row(n, row, from, to, values, [&](int64_t, int64_t count, int64_t column) {
          for (int64_t i = 0; i < count; ++i)
            n.scales[column + i] = std::max(n.scales[column + i], std::fabs(values[static_cast<size_t>(i)]));
        });
      for (int64_t c = from; c < to; ++c) n.scales[c] = fp8_scale(n.scales[c], DType::f8_e4m3);
    }
  });
}

void flat_codes(const FlatLines& n) {
  at::parallel_for(0, n.rows(), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> values, scales;
    for (int64_t row = begin; row < end; ++row)
      of_row(n, n.first_row() + row, 0, n.width, values, [&](int64_t at, int64_t count, int64_t column) {
        if (!n.columns) scales.assign(static_cast<size_t>(count), n.scales[row]);
        quantise_fp8_by(n.codes + at, values.data(), n.columns ? n.scales + column : scales.data(), count,
                        DType::f8_e4m3);
      });
  });
}

void merge_scales(const MergedScales& scales) {
  for (int32_t r = 0; r < scales.count; ++r) {
    const MergedScales::Run& run = scales.at[r];
    for (int64_t i = 0; i < run.count; ++i) run.to[i] = run.from ? std::max(run.to[i], run.from[i]) : 0;
  }
}

void turn_codes(const TurnedCodes& n) {
  constexpr int64_t kTile = 64;
  at::parallel_for(0, div_up(n.width, kTile), 1, [&](int64_t begin, int64_t end) {
    for (int64_t left = begin * kTile; left < std::min(end * kTile, n.width); left += kTile)
      for (int64_t top = 0; top < n.stride; top += kTile)
        for (int64_t column = left; column < std::min(left + kTile, n.width); ++column)
          for (int64_t row = top; row < std::min(top + kTile, n.stride); ++row)
            n.to[column * n.stride + row] = row < n.rows ? n.from[row * n.width + column] : uint8_t{0};
  });
}

}  // namespace tessera::ops
