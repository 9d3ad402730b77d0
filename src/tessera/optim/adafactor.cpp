#include "tessera/optim/adafactor.h"

#include <algorithm>
#include <cmath>

#include "tessera/ops/ranges.h"
#include "tessera/optim/slice_ranges.h"

namespace tessera::optim {

Clipped::Second Adafactor::second(const net::StepControl& control) const {
  return {1 - std::pow(static_cast<double>(control.step), options_.decay_rate), options_.eps[0],
          options_.clip_threshold};
}

void Adafactor::add_sums(const net::Slice& slice, const net::StepControl& control, int round, double* sums) const {
  Clipped::add_sums(slice, control, round, sums);
  if (round != 0) return;
  const ops::MasterRange masters = SliceRanges(slice, options_.format.masters, options_.seed, control.step).masters();
  ops::backend(slice.on_device).add_master_squares(masters, slice.count(), sums + factors(slice).sums());
}

/// Before it is multiplied by the size of the parameter.
double Adafactor::rate(const net::StepControl& control) const {
  const auto t = static_cast<double>(control.step);
  double lr = control.lr;
  if (options_.relative_step) lr = std::min(lr, 1 / std::sqrt(t));
  if (options_.warmup_init) lr = std::min(lr, 1e-6 * t);
  return lr;
}

void Adafactor::update(const net::Slice& slice, const net::StepControl& control) const {
  SliceRanges ranges(slice, options_.format.masters, options_.seed, control.step);
  const auto rounded = [](double x) { return static_cast<float>(x); };
  const bool has_first = plan::has_first_moment(options_.format);
  const ops::AdafactorStep step = {.p = ranges.masters(),
                                   .first = has_first ? ranges.moment("exp_avg") : ops::MomentRange{},
                                   .has_first = has_first,
                                   .keep = rounded(options_.beta1),
                                   .take = rounded(1 - options_.beta1),
                                   .lr = rate(control),
                                   .weight_decay = options_.weight_decay,
                                   .least = options_.eps[1],
                                   .size = options_.scale_parameter ? slice.sums[0] + factors(slice).sums() : nullptr};
  ops::backend(slice.on_device).adafactor(clipped(slice, control), step);
}

}  // namespace tessera::optim
