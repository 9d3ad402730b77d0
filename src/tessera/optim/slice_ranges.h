#pragma once
// A slice's masters and moments as the ranges that update kernels take. Internal to the optimisers.
//
//   const SliceRanges ranges(slice, options.seed, control.step);
//   ops::adamw(ranges.masters(), ranges.moment("exp_avg"), ranges.moment("exp_avg_sq"), ...);
#include <list>

#include "tessera/net/unit_update.h"
#include "tessera/ops/update_block.h"

namespace tessera::optim {

ops::GradientRange gradient_of(const net::Slice& slice);

class SliceRanges {
 public:
  SliceRanges(const net::Slice& slice, plan::Masters form, uint64_t seed, int64_t step)
      : slice_(slice), form_(form), seed_(seed), step_(step) {}
  SliceRanges(const SliceRanges&) = delete;

  /// The ranges point to random keys of this object.
  ops::MasterRange masters();
  ops::MomentRange moment(const std::string& kind);
  ops::GradientRange gradient() const { return gradient_of(slice_); }

 private:
  ops::Rounding rounding(std::string_view kind);

  const net::Slice& slice_;
  const plan::Masters form_;
  const uint64_t seed_;
  const int64_t step_;
  std::list<RandomKey> keys_;
};

}  // namespace tessera::optim
