#include "tessera/optim/lion.h"

#include "tessera/ops/kernel.h"
#include "tessera/ops/update_block.h"
#include "tessera/optim/slice_ranges.h"

namespace tessera::optim {

namespace {

struct LionFactors {
  float scale, decay, step, keep_now, take_now, keep, take;
};

TESSERA_KERNEL void lion_block(float* __restrict p, float* __restrict m, const float* __restrict g, int64_t n,
                               LionFactors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * f.scale, direction = m[i] * f.keep_now + gradient * f.take_now;
    const float sign = static_cast<float>(direction > 0) - static_cast<float>(direction < 0);
    p[i] = p[i] * f.decay - f.step * sign;
    m[i] = m[i] * f.keep + gradient * f.take;
  }
}

}  // namespace

void Lion::update(const net::Slice& slice, const net::StepControl& control) const {
  const auto rounded = [](double x) { return static_cast<float>(x); };
  const LionFactors f = {rounded(control.scale),
                         rounded(1 - control.lr * options_.weight_decay),
                         rounded(control.lr),
                         rounded(options_.betas[0]),
                         rounded(1 - options_.betas[0]),
                         rounded(options_.betas[1]),
                         rounded(1 - options_.betas[1])};
  SliceRanges ranges(slice, options_.format.masters, options_.seed, control.step);
  const ops::MasterRange masters = ranges.masters();
  const ops::MomentRange moment = ranges.moment("exp_avg");
  const ops::DynamicMap& map = ops::DynamicMap::with_sign();
  each_block(slice.count(), [&](int64_t at, int64_t count) {
    float blocks[2][ops::kUpdateBlock];
    float* p = ops::load(masters, blocks[0], at, count);
    float* m = ops::load(moment, map, blocks[1], at, count);
    lion_block(p, m, slice.grad + at, count, f);
    ops::store(masters, p, at, count);
    ops::store(moment, map, /*keep_sign=*/false, m, at, count);
  });
}

}  // namespace tessera::optim
