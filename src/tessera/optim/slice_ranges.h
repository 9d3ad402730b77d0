#pragma once
// A slice's masters and moments as the ranges that update kernels take. Internal to the optimisers.
//
//   const SliceRanges ranges(slice, options.seed, control.step);
//   ops::adamw(ranges.masters(), ranges.moment("exp_avg"), ranges.moment("exp_avg_sq"), ...);
#include <ATen/Parallel.h>

#include <algorithm>
#include <list>

#include "tessera/net/unit_update.h"
#include "tessera/ops/update_block.h"

namespace tessera::optim {

class SliceRanges {
 public:
  SliceRanges(const net::Slice& slice, plan::Masters form, uint64_t seed, int64_t step)
      : slice_(slice), form_(form), seed_(seed), step_(step) {}
  SliceRanges(const SliceRanges&) = delete;

  /// The ranges point to random keys of this object.
  ops::MasterRange masters();
  ops::MomentRange moment(const std::string& kind);
  ops::GradientRange gradient() const;

 private:
  ops::Rounding rounding(std::string_view kind);

  const net::Slice& slice_;
  const plan::Masters form_;
  const uint64_t seed_;
  const int64_t step_;
  std::list<RandomKey> keys_;
};

// The blocks of a slice's update. Internal to the optimisers.
//
//   each_block(slice.count(), [&](int64_t at, int64_t count) { ... });     // of at most ops::kUpdateBlock elements

/// On all threads; blocks are independent, so the result does not depend on their number.
template <class Each>
void each_block(int64_t elements, const Each& each) {
  constexpr int64_t kGrain = 256;  // blocks of a thread at least
  at::parallel_for(0, (elements + ops::kUpdateBlock - 1) / ops::kUpdateBlock, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t at = b * ops::kUpdateBlock;
      each(at, std::min(ops::kUpdateBlock, elements - at));
    }
  });
}

}  // namespace tessera::optim
