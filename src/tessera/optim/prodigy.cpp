#include "tessera/optim/prodigy.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/ranges.h"
#include "tessera/optim/slice_ranges.h"

namespace tessera::optim {

double ProdigyOptions::rate(const net::StepControl& control) const {
  const auto step = static_cast<double>(control.step);
  const double correction =
      bias_correction ? std::sqrt(1 - std::pow(betas[1], step)) / (1 - std::pow(betas[0], step)) : 1;
  return control.d * control.lr * correction;
}

void Prodigy::update(const net::Slice& slice, const net::StepControl& control) const {
  check_internal(control.d > 0, "optim.prodigy", "an update without a step size");
  const auto rounded = [](double x) { return static_cast<float>(x); };
  const double d = control.d, rate = options_.rate(control);
  const auto& [b1, b2] = options_.betas;
  const ops::ProdigyFactors f = {rounded(control.scale),
                                 rounded(b1),
                                 rounded((1 - b1) * d),
                                 rounded(b2),
                                 rounded((1 - b2) * d * d),
                                 rounded(options_.third()),
                                 rounded(d / options_.d0 * (options_.safeguard_warmup ? d : rate)),
                                 rounded(1 - rate * options_.weight_decay),
                                 rounded(rate),
                                 rounded(d * options_.eps),
                                 control.step == 1};
  SliceRanges ranges(slice, options_.format.masters, options_.seed, control.step);
  const ops::MasterRange masters = ranges.masters();
  const ops::MomentRange first = ranges.moment("exp_avg"), second = ranges.moment("exp_avg_sq");
  auto *s = slice.state<float>("s"), *start = slice.state<float>("p0");
  // on a device its parts stay there, to be added when all are known
  std::vector<net::Totals> parts(slice.on_device ? 0 : div_up(slice.count(), ops::kUpdateGrain));
  net::Totals* totals = slice.on_device ? slice.totals : parts.data();
  ops::backend(slice.on_device)
      .prodigy(masters, first, second, s, start, ranges.gradient(), slice.count(), f,
               totals ? totals->data() : nullptr);
  for (const net::Totals& part : parts)
    for (size_t t = 0; slice.totals && t < part.size(); ++t) (*slice.totals)[t] += part[t];
}

void ProdigySize::take(const net::Totals& totals, const net::StepControl& control) {
  numerator_ = options_.third() * numerator_ + control.d / options_.d0 * options_.rate(control) * totals[0];
  if (control.lr <= 0 || totals[1] <= 0) return;
  estimate_ = options_.d_coef * numerator_ / totals[1];
  // as prodigyopt: the first estimate beyond d0 is taken whole
  if (d_ == options_.d0) d_ = std::max(d_, estimate_);
  most_ = std::max(most_, estimate_);
  d_ = std::min(most_, d_ * options_.growth_rate);
}

}  // namespace tessera::optim
