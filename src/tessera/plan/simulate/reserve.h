#pragma once
// What a rank may take of a device unless the recipe says: not all, because the driver's context, the libraries'
// workspaces, the buffers of collectives and what an allocator cannot use between its blocks are in no plan.
#include <algorithm>
#include <cstdint>

namespace tessera::plan {

/// Bytes of a device with `memory` bytes: 3 GiB and 3 % stay free, of small devices a tenth.
inline int64_t without_reserve(int64_t memory) {
  return memory - std::min(memory / 10, (int64_t{3} << 30) + memory / 100 * 3);
}

}  // namespace tessera::plan
