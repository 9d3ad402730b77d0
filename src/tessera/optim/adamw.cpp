#include "tessera/optim/adamw.h"

#include <algorithm>
#include <cmath>

#include "tessera/ops/adamw.h"
#include "tessera/ops/ranges.h"
#include "tessera/optim/slice_ranges.h"

namespace tessera::optim {

void AdamW::update(const net::Slice& slice, const net::StepControl& control) const {
  ops::AdamWStep step;
  step.step = control.step;
  step.lr = control.lr;
  step.beta1 = options_.betas[0];
  step.beta2 = options_.betas[1];
  step.eps = options_.eps;
  if (options_.early_eps) step.eps /= std::sqrt(1 - std::pow(options_.betas[1], static_cast<double>(control.step)));
  step.weight_decay = options_.weight_decay;
  step.grad_scale = control.scale;
  step.decay_last = options_.decay_last;
  step.keep_sign = options_.keep_sign;
  SliceRanges ranges(slice, options_.format.masters, options_.seed, control.step);
  const ops::MasterRange masters = ranges.masters();
  const ops::MomentRange m = ranges.moment("exp_avg"), v = ranges.moment("exp_avg_sq");
  ops::backend(slice.on_device).adamw(masters, m, v, ranges.gradient(), slice.count(), step);
}

void Lion::update(const net::Slice& slice, const net::StepControl& control) const {
  const auto rounded = [](double x) { return static_cast<float>(x); };
  const ops::LionFactors f = {rounded(control.scale),
                              rounded(1 - control.lr * options_.weight_decay),
                              rounded(control.lr),
                              rounded(options_.betas[0]),
                              rounded(1 - options_.betas[0]),
                              rounded(options_.betas[1]),
                              rounded(1 - options_.betas[1])};
  SliceRanges ranges(slice, options_.format.masters, options_.seed, control.step);
  const ops::MasterRange masters = ranges.masters();
  const ops::MomentRange moment = ranges.moment("exp_avg");
  ops::backend(slice.on_device).lion(masters, moment, ranges.gradient(), slice.count(), f);
}

double clip_coefficient(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace tessera::optim
