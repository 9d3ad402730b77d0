#include "tessera/diffusion/expert_order.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

namespace tessera::diffusion {

namespace {

/// Draws the expert of a period: the one whose part of [0, 1) contains the period's uniform random number.
uint32_t expert_of_period(uint64_t seed, int64_t period, const std::vector<double>& shares) {
  double left = RandomKey(seed, Purpose::expert, static_cast<uint64_t>(period)).uniform(0);
  uint32_t last = 0;
  for (uint32_t e = 0; e < shares.size(); ++e) {
    if (shares[e] <= 0) continue;
    last = e;
    if ((left -= shares[e]) < 0) return e;
  }
  return last;
}

}  // namespace

void ExpertOrder::extend(int64_t steps, const std::vector<double>& shares) {
  check_internal(shares.size() == rule_.experts, "diffusion.turns", "expected one share for each expert");
  if (alone()) steps_ += std::max<int64_t>(0, steps);
  for (int64_t i = 0; !alone() && i < steps; ++i) {
    const int64_t step = steps_++;
    const bool begins = step % rule_.period == 0;
    const uint32_t expert = begins ? expert_of_period(rule_.seed, step / rule_.period, shares) : order_.back().expert;
    order_.push_back({expert, ++taken_[expert]});
  }
}

int64_t ExpertOrder::done(size_t expert, int64_t step) const {
  if (alone()) return std::min(step, steps_);
  for (int64_t s = step; s > 0; --s)
    if (this->expert(s) == expert) return own_step(s);
  return 0;
}

}  // namespace tessera::diffusion
