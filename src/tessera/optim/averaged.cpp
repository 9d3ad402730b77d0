#include "tessera/optim/averaged.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/ops/ranges.h"
#include "tessera/optim/slice_ranges.h"

namespace tessera::optim {

double average_decay(const AverageOptions& options, int64_t step) {
  const auto s = static_cast<double>(std::max<int64_t>(0, step - options.after - 1));
  if (s == 0) return 0;
  const double rising =
      options.power > 0 ? 1 - std::pow(1 + s / options.inv_gamma, -options.power) : (1 + s) / (10 + s);
  return std::max(std::min(options.decay, rising), options.least);
}

Averaged::Averaged(std::unique_ptr<const net::UnitUpdate> optimiser, AverageOptions options, plan::Masters masters)
    : inner_(std::move(optimiser)), options_(options), masters_(masters) {
  if (masters == plan::Masters::bf16)
    throw UserError(Exit::usage, "train.ema", "plan.masters = \"bf16\" are rounded, and do not hold an average",
                    "use plan.masters = \"split\", which gathers bf16 too, or \"fp32\"");
}

void Averaged::update(const net::Slice& slice, const net::StepControl& control) const {
  inner_->update(slice, control);
  const auto take = static_cast<float>(1 - average_decay(options_, control.step));
  auto* average = slice.state<float>(plan::kAverage);
  SliceRanges ranges(slice, masters_, 0, control.step);
  ops::backend(slice.on_device).move_average(average, ranges.masters(), slice.count(), take);
}

}  // namespace tessera::optim
