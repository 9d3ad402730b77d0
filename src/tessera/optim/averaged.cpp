#include "tessera/optim/averaged.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/ops/update_block.h"
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
  if (slice.on_device) {
    const auto on = at::TensorOptions(at::kFloat).device(device::here());
    const at::Tensor p = at::from_blob(slice.param, {slice.count()}, on);
    at::from_blob(average, {slice.count()}, on).lerp_(p, take);
    return;
  }
  const ops::MasterRange masters = SliceRanges(slice, masters_, 0, control.step).masters();
  each_block(slice.count(), [&](int64_t at, int64_t count) {
    float block[ops::kUpdateBlock];
    const float* p = ops::load(masters, block, at, count);
    if (take == 1)  // a copy to the last bit, whatever the average was
      std::copy_n(p, count, average + at);
    else
      for (int64_t i = 0; i < count; ++i) average[at + i] -= take * (average[at + i] - p[i]);
  });
}

}  // namespace tessera::optim
