#pragma once
// Default device budget of a rank. It leaves a reserve, because plans do not include the driver's context, library
// workspaces, communication buffers and allocator fragmentation.
#include <algorithm>
#include <cstdint>

namespace tessera::plan {

/// Bytes to use of a device with `memory` bytes: 3 GiB and 3 % stay free, or a tenth on small devices.
inline int64_t without_reserve(int64_t memory) {
  return memory - std::min(memory / 10, (int64_t{3} << 30) + memory / 100 * 3);
}

}  // namespace tessera::plan
