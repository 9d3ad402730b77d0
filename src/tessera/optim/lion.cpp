#include "tessera/optim/lion.h"

#include "tessera/ops/adamw.h"
#include "tessera/ops/ranges.h"
#include "tessera/optim/slice_ranges.h"

namespace tessera::optim {

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

}  // namespace tessera::optim
