#pragma once
// Optimiser kernels over flat ranges: parameters and moments in any of their storage formats, in one pass over memory.
// Results do not depend on the number of threads.
//
//   adamw({.fp32 = p}, {.fp32 = m}, {.fp32 = v}, g, n, {.step = 1, .lr = 1e-4, .weight_decay = 0.01});
//   adamw({.bf16 = high, .low = low}, {.codes = m, .scales = ms}, {.codes = v, .scales = vs}, g, n, step);
#include <cstdint>

#include "tessera/ops/update_block.h"

namespace tessera::ops {

struct AdamWStep {
  int64_t step = 1;  ///< from 1
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double grad_scale = 1;  ///< multiplies every gradient first (clip coefficient)
  /// As in bitsandbytes' CUDA kernel: weight decay after the update, and a negative 8-bit first moment never becomes 0.
  bool decay_last = false, keep_sign = false;
};

/// What the loops multiply by, on the CPU and on a device: computed in double and rounded once (1 - beta2 computed in fp32
/// has a relative error of 1e-5).
struct AdamWFactors {
  float scale, decay_first, decay_last, keep_second, take_first, take_second, step_size, inverse_root, eps;
  explicit AdamWFactors(const AdamWStep& step);
};

/// p *= 1 - lr wd; m, v; p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps), as torch.optim.AdamW. The update
/// uses the moments before they are rounded for storage.
void adamw(const MasterRange& p, const MomentRange& m, const MomentRange& v, const float* g, int64_t n,
           const AdamWStep& step);

/// What Lion's loops multiply by.
struct LionFactors {
  float scale, decay, step, keep_now, take_now, keep, take;
};
/// p *= decay, less `step` in the direction of the sign of keep_now m + take_now g; m = keep m + take g; g = scale * gradient.
void lion(const MasterRange& p, const MomentRange& m, const GradientRange& g, int64_t n, const LionFactors& factors);

/// What the loops of schedule-free updates multiply by (Defazio and others, 2024). `divides`: by the root of the second
/// moment; `begins`: z and x are what y is.
struct ScheduleFreeFactors {
  float scale, keep, take, correction, eps, decay, rate, average, inwards;
  bool divides, begins;
};
/// y are the parameters, between z and their average x; v is the second moment.
void schedule_free(const MasterRange& y, float* z, float* v, float* x, const GradientRange& g, int64_t n,
                   const ScheduleFreeFactors& factors);

/// average += take * (p - average); with `take` 1 a copy of p, whatever the average was.
void move_average(float* average, const MasterRange& p, int64_t n, float take);

/// What Prodigy's loops multiply by; `begins`: the parameters are what they began as.
struct ProdigyFactors {
  float scale, keep_first, take_first, keep_second, take_second, keep_sum, take_sum, decay, step, eps;
  bool begins;
};
/// With g = scale * gradient: m, v and s, then p *= decay, less step * m / (sqrt(v) + eps). `totals`, unless null, gets for each
/// kUpdateGrain elements the sums of g (start - p) before the update and of |s|: in fp32 by eight that take turns in a block,
/// which are added in double.
void prodigy(const MasterRange& p, const MomentRange& m, const MomentRange& v, float* s, float* start,
             const GradientRange& g, int64_t n, const ProdigyFactors& factors, double* totals);
/// out[t] += parts[t] + parts[2 + t] + ..., of `count` pairs, in this order.
void add_totals(double* out, const double* parts, int64_t count);

/// What a momentum multiplies by: the gradient by `scale`, then `take`.
struct MomentumFactors {
  float scale, take, keep;
  bool nesterov;
};
/// Values in fp32, or in bf16. Set one.
struct DirectionRange {
  float* fp32 = nullptr;
  uint16_t* bf16 = nullptr;
};
/// m = keep m + g; the direction is keep m + g with Nesterov, else m.
void momentum(const MomentRange& m, const GradientRange& g, int64_t n, const MomentumFactors& factors,
              const DirectionRange& direction);
/// p = keep p - step direction.
void step_along(const MasterRange& p, const DirectionRange& direction, int64_t n, float keep, float step);

/// The same with everything in fp32.
inline void adamw(float* p, float* m, float* v, const float* g, int64_t n, const AdamWStep& step) {
  adamw(MasterRange{.fp32 = p}, MomentRange{.fp32 = m}, MomentRange{.fp32 = v}, g, n, step);
}

/// Sum of squares in double, in one order on every processor: partial sums of 65,536 elements, each of 32 that take turns.
double sum_of_squares(const float* x, int64_t n);

/// out[i] += in[i]
void add(float* out, const float* in, int64_t n);

}  // namespace tessera::ops
