#include "tessera/ops/adamw.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/ops/kernel.h"

namespace tessera::ops {

namespace {

constexpr int64_t kGrain = 1 << 16;  // elements a thread takes at least; also what one partial sum covers

/// The step's numbers, computed in double and rounded once: 1 - beta2 in fp32 would be off by 1e-5 of itself.
struct Factors {
  float scale, decay, keep_second, take_first, take_second, step_size, inverse_root, eps;

  explicit Factors(const AdamWStep& s) {
    const double t = static_cast<double>(s.step);
    scale = static_cast<float>(s.grad_scale);
    decay = static_cast<float>(1 - s.lr * s.weight_decay);
    take_first = static_cast<float>(1 - s.beta1);
    keep_second = static_cast<float>(s.beta2);
    take_second = static_cast<float>(1 - s.beta2);
    step_size = static_cast<float>(s.lr / (1 - std::pow(s.beta1, t)));
    inverse_root = static_cast<float>(1 / std::sqrt(1 - std::pow(s.beta2, t)));
    eps = static_cast<float>(s.eps);
  }
};

TESSERA_KERNEL void adamw_kernel(float* __restrict p, float* __restrict m, float* __restrict v,
                                 const float* __restrict g, int64_t n, Factors f) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * f.scale;
    m[i] += (gradient - m[i]) * f.take_first;
    v[i] = v[i] * f.keep_second + gradient * gradient * f.take_second;
    p[i] = p[i] * f.decay - f.step_size * m[i] / (std::sqrt(v[i]) * f.inverse_root + f.eps);
  }
}

TESSERA_KERNEL double sum_of_squares_kernel(const float* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

TESSERA_KERNEL void add_kernel(float* __restrict out, const float* __restrict in, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] += in[i];
}

}  // namespace

void adamw(float* p, float* m, float* v, const float* g, int64_t n, const AdamWStep& step) {
  const Factors factors(step);
  at::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) {
    adamw_kernel(p + begin, m + begin, v + begin, g + begin, end - begin, factors);
  });
}

double sum_of_squares(const float* x, int64_t n) {
  std::vector<double> partial(static_cast<size_t>(div_up(n, kGrain)));
  at::parallel_for(0, static_cast<int64_t>(partial.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c)
      partial[c] = sum_of_squares_kernel(x + c * kGrain, std::min(kGrain, n - c * kGrain));
  });
  return std::accumulate(partial.begin(), partial.end(), 0.0);
}

void add(float* out, const float* in, int64_t n) {
  at::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) { add_kernel(out + begin, in + begin, end - begin); });
}

}  // namespace tessera::ops
