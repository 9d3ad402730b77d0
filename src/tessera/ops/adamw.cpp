#include "tessera/ops/adamw.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/update_block.h"

namespace tessera::ops {

namespace {

constexpr int64_t kUpdateGrain = 1 << 16;  // minimum number of elements of a thread, and of one partial sum

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
