#include "tessera/optim/came.h"

#include "tessera/ops/ranges.h"
#include "tessera/optim/slice_ranges.h"

namespace tessera::optim {

Clipped::Second Came::second(const net::StepControl&) const {
  return {options_.betas[1], options_.eps[0], options_.clip_threshold};
}

ops::CameStep Came::step(SliceRanges& ranges, const net::Slice& slice, const net::StepControl& control) const {
  const auto rounded = [](double x) { return static_cast<float>(x); };
  return {.p = ranges.masters(),
          .first = ranges.moment("exp_avg"),
          .keep = rounded(options_.betas[0]),
          .take = rounded(1 - options_.betas[0]),
          .eps = rounded(options_.eps[1]),
          .factors = slice.sums.size() > 2 && factors(slice).any() ? slice.sums[2] : nullptr,
          .lr = rounded(control.lr),
          .decay = rounded(1 - control.lr * options_.weight_decay)};
}

void Came::add_sums(const net::Slice& slice, const net::StepControl& control, int round, double* sums) const {
  if (round < 2) return Clipped::add_sums(slice, control, round, sums);
  if (!factors(slice).any()) return;
  SliceRanges ranges(slice, options_.format.masters, options_.seed, control.step);
  ops::backend(slice.on_device).add_residual_sums(clipped(slice, control), step(ranges, slice, control), sums);
}

void Came::take_sums(const net::Slice& slice, const net::StepControl& control, int round) const {
  if (round < 2) return Clipped::take_sums(slice, control, round);
  take_means(slice, "exp_avg_res", slice.sums[2], options_.betas[2]);
}

void Came::update(const net::Slice& slice, const net::StepControl& control) const {
  SliceRanges ranges(slice, options_.format.masters, options_.seed, control.step);
  ops::backend(slice.on_device).came(clipped(slice, control), step(ranges, slice, control));
}

}  // namespace tessera::optim
