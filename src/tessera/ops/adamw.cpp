#include "tessera/ops/adamw.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/update_block.h"
#include "tessera/ops/widen.h"

namespace tessera::ops {

namespace {

TESSERA_KERNEL void adamw_kernel(float* __restrict p, float* __restrict m, float* __restrict v,
                                 const float* __restrict g, int64_t n, AdamWFactors f) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * f.scale;
    m[i] += (gradient - m[i]) * f.take_first;
    v[i] = v[i] * f.keep_second + gradient * gradient * f.take_second;
    const float moved = p[i] * f.decay_first - f.step_size * m[i] / (std::sqrt(v[i]) * f.inverse_root + f.eps);
    p[i] = moved * f.decay_last;
  }
}

TESSERA_KERNEL double sum_of_squares_kernel(const float* x, int64_t n) {
  // 32 sums that take turns, as many as the widest processor keeps busy: the order is everybody's
  constexpr int kWide = 8, kSums = 4, kTurns = kWide * kSums;
  using Doubles = double __attribute__((vector_size(kWide * sizeof(double))));
  using Floats = float __attribute__((vector_size(kWide * sizeof(float)), aligned(alignof(float)), may_alias));
  Doubles sums[kSums] = {};
  const int64_t whole = n / kTurns * kTurns;
  for (int64_t i = 0; i < whole; i += kTurns) {
    const auto* values = reinterpret_cast<const Floats*>(x + i);
    for (int s = 0; s < kSums; ++s) {
      const Doubles wide = __builtin_convertvector(values[s], Doubles);
      sums[s] += wide * wide;
    }
  }
  const Doubles turns = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double sum = 0;
  for (int turn = 0; turn < kWide; ++turn) sum += turns[turn];
  for (int64_t i = whole; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

TESSERA_KERNEL void add_kernel(float* __restrict out, const float* __restrict in, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] += in[i];
}

}  // namespace

AdamWFactors::AdamWFactors(const AdamWStep& s) {
  const double t = static_cast<double>(s.step);
  const auto decay = static_cast<float>(1 - s.lr * s.weight_decay);
  scale = static_cast<float>(s.grad_scale);
  decay_first = s.decay_last ? 1 : decay;
  decay_last = s.decay_last ? decay : 1;
  take_first = static_cast<float>(1 - s.beta1);
  keep_second = static_cast<float>(s.beta2);
  take_second = static_cast<float>(1 - s.beta2);
  step_size = static_cast<float>(s.lr / (1 - std::pow(s.beta1, t)));
  inverse_root = static_cast<float>(1 / std::sqrt(1 - std::pow(s.beta2, t)));
  eps = static_cast<float>(s.eps);
}

void adamw(const MasterRange& p, const MomentRange& m, const MomentRange& v, const float* g, int64_t n,
           const AdamWStep& step) {
  const AdamWFactors factors(step);
  const DynamicMap& with_sign = DynamicMap::with_sign();
  const DynamicMap& without_sign = DynamicMap::without_sign();
  at::parallel_for(0, div_up(n, kUpdateBlock), kUpdateGrain / kUpdateBlock, [&](int64_t begin, int64_t end) {
    float blocks[3][kUpdateBlock];
    const int64_t stop = std::min(n, end * kUpdateBlock), whole = stop - begin * kUpdateBlock;
    const int64_t piece = p.fp32 && m.fp32 && v.fp32 ? whole : kUpdateBlock;  // nothing to widen: one block
    for (int64_t at = begin * kUpdateBlock; at < stop; at += piece) {
      const int64_t count = std::min(piece, stop - at);
      float* values = load(p, blocks[0], at, count);
      float* first = load(m, with_sign, blocks[1], at, count);
      float* second = load(v, without_sign, blocks[2], at, count);
      adamw_kernel(values, first, second, g + at, count, factors);
      store(p, values, at, count);
      store(m, with_sign, step.keep_sign, first, at, count);
      store(v, without_sign, false, second, at, count);
    }
  });
}

namespace {

TESSERA_KERNEL void lion_kernel(float* __restrict p, float* __restrict m, const float* __restrict g, int64_t n,
                                LionFactors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * f.scale, direction = m[i] * f.keep_now + gradient * f.take_now;
    const float sign = static_cast<float>(direction > 0) - static_cast<float>(direction < 0);
    p[i] = p[i] * f.decay - f.step * sign;
    m[i] = m[i] * f.keep + gradient * f.take;
  }
}

TESSERA_KERNEL void schedule_free_kernel(float* __restrict y, float* __restrict z, float* __restrict v,
                                         float* __restrict x, const float* __restrict g, int64_t n,
                                         ScheduleFreeFactors f) {
  for (int64_t i = 0; i < n; ++i) {
    if (f.begins) z[i] = x[i] = y[i];
    const float gradient = g[i] * f.scale;
    v[i] = v[i] * f.keep + gradient * gradient * f.take;
    const float direction = f.divides ? gradient / (std::sqrt(v[i] * f.correction) + f.eps) : gradient;
    z[i] -= f.rate * (direction + f.decay * y[i]);
    x[i] += f.average * (z[i] - x[i]);
    y[i] = x[i] + f.inwards * (z[i] - x[i]);
  }
}

}  // namespace

void lion(const MasterRange& p, const MomentRange& m, const GradientRange& g, int64_t n, const LionFactors& factors) {
  const DynamicMap& map = DynamicMap::with_sign();
  each_block(n, kUpdateBlock, kUpdateGrain, [&](int64_t at, int64_t count) {
    float blocks[3][kUpdateBlock];
    float *values = load(p, blocks[0], at, count), *moment = load(m, map, blocks[1], at, count);
    lion_kernel(values, moment, load(g, blocks[2], at, count), count, factors);
    store(p, values, at, count);
    store(m, map, /*keep_sign=*/false, moment, at, count);
  });
}

void schedule_free(const MasterRange& y, float* z, float* v, float* x, const GradientRange& g, int64_t n,
                   const ScheduleFreeFactors& factors) {
  each_block(n, kUpdateBlock, kUpdateGrain, [&](int64_t at, int64_t count) {
    float blocks[2][kUpdateBlock];
    float* values = load(y, blocks[0], at, count);
    schedule_free_kernel(values, z + at, v + at, x + at, load(g, blocks[1], at, count), count, factors);
    store(y, values, at, count);
  });
}

void move_average(float* average, const MasterRange& p, int64_t n, float take) {
  each_block(n, kUpdateBlock, kUpdateGrain, [&](int64_t at, int64_t count) {
    float block[kUpdateBlock];
    const float* values = load(p, block, at, count);
    for (int64_t i = 0; i < count; ++i)
      average[at + i] = take == 1 ? values[i] : average[at + i] - take * (average[at + i] - values[i]);
  });
}

namespace {

struct Moved {
  float *p, *m, *v, *s;
  const float *start, *g;
};

/// Eight sums take turns, so that the loop vectorises with one order for every processor.
constexpr int kTurns = 8;

TESSERA_KERNEL void prodigy_block(const Moved& x, int64_t n, const ProdigyFactors& f, double* totals) {
  float toward[kTurns] = {}, size[kTurns] = {};
  const auto one = [&](int64_t i, int turn) {
    const float g = x.g[i] * f.scale;
    toward[turn] += g * (x.start[i] - x.p[i]);
    x.m[i] = x.m[i] * f.keep_first + g * f.take_first;
    x.v[i] = x.v[i] * f.keep_second + g * g * f.take_second;
    x.s[i] = x.s[i] * f.keep_sum + g * f.take_sum;
    size[turn] += std::abs(x.s[i]);
    const float root = std::sqrt(x.v[i]) + f.eps;
    x.p[i] = x.p[i] * f.decay - (root > 0 ? f.step * (x.m[i] / root) : 0);
  };
  int64_t i = 0;
  for (; i + kTurns <= n; i += kTurns)
    for (int turn = 0; turn < kTurns; ++turn) one(i + turn, turn);
  for (int turn = 0; i < n; ++i, ++turn) one(i, turn);
  for (int turn = 0; turn < kTurns; ++turn)
    totals[0] += static_cast<double>(toward[turn]), totals[1] += static_cast<double>(size[turn]);
}

}  // namespace

void prodigy(const MasterRange& p, const MomentRange& m, const MomentRange& v, float* s, float* start,
             const GradientRange& g, int64_t n, const ProdigyFactors& factors, double* totals) {
  const DynamicMap &with_sign = DynamicMap::with_sign(), &without = DynamicMap::without_sign();
  at::parallel_for(0, div_up(n, kUpdateGrain), 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      double sums[2] = {};
      const int64_t stop = std::min(n, (part + 1) * kUpdateGrain);
      for (int64_t at = part * kUpdateGrain; at < stop; at += kUpdateBlock) {
        const int64_t count = std::min(kUpdateBlock, stop - at);
        float blocks[4][kUpdateBlock];
        float *values = load(p, blocks[0], at, count), *first = load(m, with_sign, blocks[1], at, count),
              *second = load(v, without, blocks[2], at, count);
        if (factors.begins) std::copy_n(values, count, start + at);
        prodigy_block({values, first, second, s + at, start + at, load(g, blocks[3], at, count)}, count, factors, sums);
        store(p, values, at, count);
        store(m, with_sign, /*keep_sign=*/false, first, at, count);
        store(v, without, /*keep_sign=*/false, second, at, count);
      }
      if (totals) std::copy_n(sums, 2, totals + 2 * part);
    }
  });
}

void add_totals(double* out, const double* parts, int64_t count) {
  double sums[2] = {};
  for (int64_t i = 0; i < count; ++i) sums[0] += parts[2 * i], sums[1] += parts[2 * i + 1];
  out[0] += sums[0], out[1] += sums[1];
}

void momentum(const MomentRange& m, const GradientRange& g, int64_t n, const MomentumFactors& f,
              const DirectionRange& direction) {
  const DynamicMap& map = DynamicMap::with_sign();
  each_block(n, kUpdateBlock, kUpdateGrain, [&](int64_t at, int64_t count) {
    float blocks[3][kUpdateBlock];
    float* moment = load(m, map, blocks[0], at, count);
    const float* gradient = load(g, blocks[1], at, count);
    float* out = direction.fp32 ? direction.fp32 + at : blocks[2];
    for (int64_t i = 0; i < count; ++i) {
      const float taken = gradient[i] * f.scale * f.take;
      moment[i] = moment[i] * f.keep + taken;
      out[i] = f.nesterov ? moment[i] * f.keep + taken : moment[i];
    }
    if (!direction.fp32) to_bf16(direction.bf16 + at, out, count);
    store(m, map, /*keep_sign=*/false, moment, at, count);
  });
}

void step_along(const MasterRange& p, const DirectionRange& direction, int64_t n, float keep, float step) {
  each_block(n, kUpdateBlock, kUpdateGrain, [&](int64_t at, int64_t count) {
    float blocks[2][kUpdateBlock];
    const float* along = load(GradientRange{.fp32 = direction.fp32, .bf16 = direction.bf16}, blocks[1], at, count);
    float* values = load(p, blocks[0], at, count);
    for (int64_t i = 0; i < count; ++i) values[i] = values[i] * keep - step * along[i];
    store(p, values, at, count);
  });
}

const float* load(const GradientRange& g, float* block, int64_t at, int64_t n) {
  if (g.fp32) return g.fp32 + at;
  widen(block, (g.bf16 ? g.bf16 : g.fp16) + at, g.bf16 ? at::kBFloat16 : at::kHalf, n);
  return block;
}

double sum_of_squares(const float* x, int64_t n) {
  std::vector<double> partial(static_cast<size_t>(div_up(n, kUpdateGrain)));
  at::parallel_for(0, static_cast<int64_t>(partial.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c)
      partial[c] = sum_of_squares_kernel(x + c * kUpdateGrain, std::min(kUpdateGrain, n - c * kUpdateGrain));
  });
  return std::accumulate(partial.begin(), partial.end(), 0.0);
}

void add(float* out, const float* in, int64_t n) {
  at::parallel_for(0, n, kUpdateGrain,
                   [&](int64_t begin, int64_t end) { add_kernel(out + begin, in + begin, end - begin); });
}

}  // namespace tessera::ops
