#include "tessera/ops/fused.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/ops/widen.h"

namespace tessera::ops {

namespace {

constexpr int64_t kLane = 8, kThreads = 256, kWarp = 32;

at::ScalarType type_of(Form form) { return form == Form::bf16 ? at::kBFloat16 : at::kHalf; }

/// Row `t` as fp32: where it lies, or widened into `space`.
const float* row_of(const RowsIn& rows, int64_t t, int64_t width, float* space) {
  if (rows.form == Form::fp32) return static_cast<const float*>(rows.data) + t * width;
  widen(space, static_cast<const uint16_t*>(rows.data) + t * width, type_of(rows.form), width);
  return space;
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

const float* table_row(const RowTable& table, const TableRuns& runs, int64_t t) {
  int i = 0;
  while (runs.at[i].end <= t) ++i;
  return table.values + runs.at[i].row * table.stride;
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

void layer_norm(const LayerNormRows& n) {
  each_token(n.tokens, n.width, 2, [&](int64_t t, Space& space) {
    const float* x = row_of(n.x, t, n.width, space.row(0));
    float *y = space.row(1), *stats = n.stats + 2 * t;
    if (!n.known) {
      const auto width = static_cast<float>(n.width);
      stats[0] = row_sum(x, n.width) / width;
      for (int64_t i = 0; i < n.width; ++i) y[i] = (x[i] - stats[0]) * (x[i] - stats[0]);
      stats[1] = 1.0f / std::sqrt(row_sum(y, n.width) / width + n.eps);
    }
    const float *scale = table_row(n.scale, n.runs, t), *shift = table_row(n.shift, n.runs, t), mean = stats[0],
                rstd = stats[1];
    for (int64_t i = 0; i < n.width; ++i) y[i] = (x[i] - mean) * rstd * (n.one + scale[i]) + shift[i];
    store_row(n.y, t, n.width, y);
  });
}

void layer_norm_gradients(const LayerNormGradients& n) {
  each_group(n.runs, n.width, 5, [&](int64_t group, int64_t row, int64_t begin, int64_t end, Space& space) {
    float *normal = space.row(2), *weighted = space.row(3), *out = space.row(4);
    float* dscale = n.scale_sums.table ? n.scale_sums.partials + group * n.width : nullptr;
    float* dshift = dscale ? n.shift_sums.partials + group * n.width : nullptr;
    if (dscale) std::fill_n(dscale, n.width, 0.0f), std::fill_n(dshift, n.width, 0.0f);
    const float* scale = n.scale.values + row * n.scale.stride;
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
  each_token(n.tokens, n.width, 2, [&](int64_t t, Space& space) {
    const float* x = row_of(n.x, t, n.width, space.row(0));
    float* y = space.row(1);
    if (!n.known) {
      for (int64_t i = 0; i < n.width; ++i) y[i] = x[i] * x[i];
      n.stats[t] = 1.0f / std::sqrt((n.squares ? n.squares[t] : row_sum(y, n.width)) / n.whole + n.eps);
    }
    const float rstd = n.stats[t];
    for (int64_t i = 0; i < n.width; ++i) y[i] = x[i] * rstd * n.w[i];
    if (n.angles.half) turn(y, y, n.angles, t, n.width, false, 1);
    store_row(n.y, t, n.width, y);
  });
}

void rms_norm_gradients(const RmsNormGradients& n) {
  const TableRuns runs = all_of(n.tokens);
  each_group(runs, n.width, 4, [&](int64_t group, int64_t, int64_t begin, int64_t end, Space& space) {
    float *turned = space.row(2), *out = space.row(3), *dw = n.sums.table ? n.sums.partials + group * n.width : nullptr;
    if (dw) std::fill_n(dw, n.width, 0.0f);
    for (int64_t t = begin; t < end; ++t) {
      const float *g = row_of(n.dy, t, n.width, space.row(0)), *x = row_of(n.x, t, n.width, space.row(1)),
                  rstd = n.stats[t];
      if (n.angles.half) turn(turned, g, n.angles, t, n.width, false, -1), g = turned;
      for (int64_t i = 0; dw && i < n.width; ++i) dw[i] += g[i] * x[i] * rstd;
      if (!n.dx.data) continue;
      for (int64_t i = 0; i < n.width; ++i) out[i] = g[i] * n.w[i] * x[i];
      const float dot = n.dots ? n.dots[t] : row_sum(out, n.width), back = dot * rstd * rstd * rstd / n.whole;
      for (int64_t i = 0; i < n.width; ++i) out[i] = g[i] * n.w[i] * rstd - x[i] * back;
      store_row(n.dx, t, n.width, out);
    }
  });
  add_groups(n.sums, runs, n.width);
}

void gated_sum(const GatedRows& n) {
  each_token(n.tokens, n.width, 3, [&](int64_t t, Space& space) {
    const float *x = row_of(n.x, t, n.width, space.row(0)), *y = row_of(n.y, t, n.width, space.row(1)),
                *gate = n.gate.values ? table_row(n.gate, n.runs, t) : nullptr;
    float* out = space.row(2);
    for (int64_t i = 0; i < n.width; ++i) out[i] = x[i] + (gate ? y[i] * gate[i] : y[i]);
    store_row(n.out, t, n.width, out);
  });
}

void gated_gradients(const GatedGradients& n) {
  each_group(n.runs, n.width, 3, [&](int64_t group, int64_t row, int64_t begin, int64_t end, Space& space) {
    float *out = space.row(2), *dgate = n.sums.table ? n.sums.partials + group * n.width : nullptr;
    if (dgate) std::fill_n(dgate, n.width, 0.0f);
    const float* gate = n.gate.values + row * n.gate.stride;
    for (int64_t t = begin; t < end; ++t) {
      const float *up = row_of(n.up, t, n.width, space.row(0)),
                  *y = dgate ? row_of(n.y, t, n.width, space.row(1)) : nullptr;
      for (int64_t i = 0; dgate && i < n.width; ++i) dgate[i] += up[i] * y[i];
      if (!n.dy.data) continue;
      for (int64_t i = 0; i < n.width; ++i) out[i] = up[i] * gate[i];
      store_row(n.dy, t, n.width, out);
    }
  });
  add_groups(n.sums, n.runs, n.width);
}

void rotate_rows(const RotatedRows& n) {
  each_token(n.tokens, n.width, 2, [&](int64_t t, Space& space) {
    const float* x = row_of(n.x, t, n.width, space.row(0));
    turn(space.row(1), x, n.angles, t, n.width, n.half_split, n.sign);
    store_row(n.y, t, n.width, space.row(1));
  });
}

}  // namespace tessera::ops
