#pragma once
// Optimiser kernels over flat fp32 ranges; results do not depend on the number of threads.
//
//   adamw(p, m, v, g, n, {.step = 1, .lr = 1e-4, .weight_decay = 0.01, .grad_scale = clip});
#include <cstdint>

namespace tessera::ops {

struct AdamWStep {
  int64_t step = 1;  ///< from 1
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double grad_scale = 1;  ///< multiplies every gradient first (clip coefficient)
};

/// p *= 1 - lr wd; m, v; p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps). As torch.optim.AdamW.
void adamw(float* p, float* m, float* v, const float* g, int64_t n, const AdamWStep& step);

/// Sum of squares in double, in a fixed order (partial sums of 65536 elements).
double sum_of_squares(const float* x, int64_t n);

/// out[i] += in[i]
void add(float* out, const float* in, int64_t n);

}  // namespace tessera::ops
