#pragma once
// The blocks of a slice's update. Internal to the optimisers.
//
//   each_block(slice.count(), [&](int64_t at, int64_t count) { ... });     // of at most ops::kUpdateBlock elements
#include <ATen/Parallel.h>

#include <algorithm>

#include "tessera/ops/update_block.h"

namespace tessera::optim {

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
