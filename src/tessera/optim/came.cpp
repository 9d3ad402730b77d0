#include "tessera/optim/came.h"

#include <algorithm>

#include "tessera/ops/update_block.h"
#include "tessera/optim/slice_ranges.h"

namespace tessera::optim {

Clipped::Second Came::second(const net::StepControl&) const {
  return {options_.betas[1], options_.eps[0], options_.clip_threshold};
}

void Came::moments(const net::Slice& slice, const net::StepControl& control, int64_t at, int64_t count, float* update,
                   float* first, float* second) const {
  divided(slice, control, at, count, update, second);
  const float clip = this->clip(slice, control);
  const auto keep = static_cast<float>(options_.betas[0]), take = static_cast<float>(1 - options_.betas[0]);
  for (int64_t i = 0; i < count; ++i) {
    update[i] *= clip;
    first[i] = first[i] * keep + update[i] * take;
  }
}

void Came::add_sums(const net::Slice& slice, const net::StepControl& control, int round, double* sums) const {
  if (round < 2) return Clipped::add_sums(slice, control, round, sums);
  const plan::Factors factors = this->factors(slice);
  if (!factors.any()) return;
  const FactoredMoment residual(slice, factors, "exp_avg_res");
  SliceRanges ranges(slice, options_.format.masters, options_.seed, control.step);
  const ops::MomentRange moment = ranges.moment("exp_avg");
  const auto eps = static_cast<float>(options_.eps[1]);
  for (int64_t at = 0; at < slice.count(); at += ops::kUpdateBlock) {
    const int64_t count = std::min(ops::kUpdateBlock, slice.count() - at);
    float update[ops::kUpdateBlock], first[ops::kUpdateBlock], block[ops::kUpdateBlock];
    std::copy_n(ops::load(moment, ops::DynamicMap::with_sign(), block, at, count), count, first);
    moments(slice, control, at, count, update, first, nullptr);
    for (int64_t i = 0; i < count; ++i) {
      const float off = update[i] - first[i];
      update[i] = off * off + eps;
    }
    residual.add(at, count, update, sums);
  }
}

void Came::take_sums(const net::Slice& slice, const net::StepControl& control, int round) const {
  if (round < 2) return Clipped::take_sums(slice, control, round);
  if (const plan::Factors factors = this->factors(slice); factors.any())
    FactoredMoment(slice, factors, "exp_avg_res").take(slice.sums[2], options_.betas[2]);
}

void Came::update(const net::Slice& slice, const net::StepControl& control) const {
  const plan::Factors factors = this->factors(slice);
  const FactoredMoment residual(slice, factors, "exp_avg_res");
  const auto lr = static_cast<float>(control.lr), decay = static_cast<float>(1 - control.lr * options_.weight_decay);
  auto* second = slice.state<float>("exp_avg_sq");
  SliceRanges ranges(slice, options_.format.masters, options_.seed, control.step);
  const ops::MasterRange masters = ranges.masters();
  const ops::MomentRange moment = ranges.moment("exp_avg");
  const ops::DynamicMap& map = ops::DynamicMap::with_sign();
  each_block(slice.count(), [&](int64_t at, int64_t count) {
    float blocks[2][ops::kUpdateBlock], moved[ops::kUpdateBlock];
    float* p = ops::load(masters, blocks[0], at, count);
    float* first = ops::load(moment, map, blocks[1], at, count);
    moments(slice, control, at, count, moved, first, second ? second + at : nullptr);
    std::copy_n(first, count, moved);
    if (factors.any()) residual.divide(at, count, moved, slice.sums[2]);
    for (int64_t i = 0; i < count; ++i) p[i] = p[i] * decay - lr * moved[i];
    ops::store(masters, p, at, count);
    ops::store(moment, map, /*keep_sign=*/false, first, at, count);
  });
}

}  // namespace tessera::optim
