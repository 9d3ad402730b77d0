#include "tessera/ops/adamw.h"

#include <cmath>

#include "tessera/ops/kernel.h"

namespace tessera::ops {

namespace {

TESSERA_KERNEL void adamw_kernel(float* __restrict p, float* __restrict m, float* __restrict v, const float* __restrict g, int64_t n,
                                 float scale, float decay, float b1, float b2, float step_size, float root, float eps) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * scale;
    const float first = m[i] + (gradient - m[i]) * (1 - b1);
    const float second = v[i] * b2 + (1 - b2) * gradient * gradient;
    m[i] = first;
    v[i] = second;
    p[i] = p[i] * decay - step_size * first / (std::sqrt(second) / root + eps);
  }
}

TESSERA_KERNEL double sum_of_squares_kernel(const float* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

TESSERA_KERNEL void add_kernel(float* __restrict out, const float* __restrict in, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] += in[i];
}

}  // namespace

void adamw(float* p, float* m, float* v, const float* g, int64_t n, const AdamWStep& s) {
  const double t = static_cast<double>(s.step);
  adamw_kernel(p, m, v, g, n, static_cast<float>(s.grad_scale), static_cast<float>(1 - s.lr * s.weight_decay), static_cast<float>(s.beta1),
               static_cast<float>(s.beta2), static_cast<float>(s.lr / (1 - std::pow(s.beta1, t))),
               static_cast<float>(std::sqrt(1 - std::pow(s.beta2, t))), static_cast<float>(s.eps));
}
double sum_of_squares(const float* x, int64_t n) { return sum_of_squares_kernel(x, n); }
void add(float* out, const float* in, int64_t n) { add_kernel(out, in, n); }

}  // namespace tessera::ops
