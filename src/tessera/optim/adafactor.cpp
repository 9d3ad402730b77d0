#include "tessera/optim/adafactor.h"

#include <algorithm>
#include <cmath>

#include "tessera/ops/update_block.h"
#include "tessera/optim/slice_ranges.h"

namespace tessera::optim {

Clipped::Second Adafactor::second(const net::StepControl& control) const {
  return {1 - std::pow(static_cast<double>(control.step), options_.decay_rate), options_.eps[0],
          options_.clip_threshold};
}

void Adafactor::add_sums(const net::Slice& slice, const net::StepControl& control, int round, double* sums) const {
  Clipped::add_sums(slice, control, round, sums);
  if (round != 0) return;
  double& squares = sums[factors(slice).sums()];
  const ops::MasterRange masters = SliceRanges(slice, options_.format.masters, options_.seed, control.step).masters();
  for (int64_t at = 0; at < slice.count(); at += ops::kUpdateBlock) {
    const int64_t count = std::min(ops::kUpdateBlock, slice.count() - at);
    float block[ops::kUpdateBlock];
    const float* p = ops::load(masters, block, at, count);
    for (int64_t i = 0; i < count; ++i) squares += static_cast<double>(p[i]) * static_cast<double>(p[i]);
  }
}

double Adafactor::rate(const net::Slice& slice, const net::StepControl& control) const {
  const auto t = static_cast<double>(control.step);
  double lr = control.lr;
  if (options_.relative_step) lr = std::min(lr, 1 / std::sqrt(t));
  if (options_.warmup_init) lr = std::min(lr, 1e-6 * t);
  if (!options_.scale_parameter) return lr;
  const double size = std::sqrt(slice.sums[0][factors(slice).sums()] / static_cast<double>(slice.numel));
  return lr * std::max(options_.eps[1], size);
}

void Adafactor::update(const net::Slice& slice, const net::StepControl& control) const {
  const double lr = rate(slice, control);
  const auto step = static_cast<float>(lr * clip(slice, control)),
             decay = static_cast<float>(1 - lr * options_.weight_decay);
  auto* moment = slice.state<float>("exp_avg_sq");
  SliceRanges ranges(slice, options_.format.masters, options_.seed, control.step);
  const ops::MasterRange masters = ranges.masters();
  const bool has_first = plan::has_first_moment(options_.format);
  const ops::MomentRange first = has_first ? ranges.moment("exp_avg") : ops::MomentRange{};
  const auto keep = static_cast<float>(options_.beta1), take = static_cast<float>(1 - options_.beta1);
  const ops::DynamicMap& map = ops::DynamicMap::with_sign();
  each_block(slice.count(), [&](int64_t at, int64_t count) {
    float blocks[2][ops::kUpdateBlock], moved[ops::kUpdateBlock];
    float* p = ops::load(masters, blocks[0], at, count);
    divided(slice, control, at, count, moved, moment ? moment + at : nullptr);
    for (int64_t i = 0; i < count; ++i) moved[i] *= step;
    if (has_first) {
      float* m = ops::load(first, map, blocks[1], at, count);
      for (int64_t i = 0; i < count; ++i) moved[i] = m[i] = m[i] * keep + moved[i] * take;
      ops::store(first, map, /*keep_sign=*/false, m, at, count);
    }
    for (int64_t i = 0; i < count; ++i) p[i] = p[i] * decay - moved[i];
    ops::store(masters, p, at, count);
  });
}

}  // namespace tessera::optim
