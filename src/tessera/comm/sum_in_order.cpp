#include "tessera/comm/sum_in_order.h"

#include <algorithm>
#include <cstring>

namespace tessera::comm {

// A block of 16 KiB stays in the L1 cache, so each value passes through memory once. Plain loops, because they run on a
// lane's thread, where LibTorch would start its own thread pool.
void sum_in_order(float* out, const std::vector<const float*>& parts, int64_t n, bool accumulate) {
  constexpr int64_t kBlock = 4096;
  float sum[kBlock];
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t count = std::min(kBlock, n - first);
    std::memcpy(sum, parts[0] + first, static_cast<size_t>(count) * sizeof(float));
    for (size_t p = 1; p < parts.size(); ++p) {
      const float* part = parts[p] + first;
      for (int64_t i = 0; i < count; ++i) sum[i] += part[i];
    }
    float* target = out + first;
    if (accumulate)
      for (int64_t i = 0; i < count; ++i) target[i] += sum[i];
    else
      std::memcpy(target, sum, static_cast<size_t>(count) * sizeof(float));
  }
}

}  // namespace tessera::comm
