#pragma once
// Default device budget of a rank. It leaves a reserve, because plans do not include the driver's context, communication
// buffers (libraries.h) and what lies between tensors.
#include <algorithm>
#include <cstdint>

namespace tessera::plan {

/// Bytes to use of a device with `memory` bytes: 3 GiB and 3 % stay free, or a tenth on small devices.
inline int64_t without_reserve(int64_t memory) {
  return memory - std::min(memory / 10, (int64_t{3} << 30) + memory / 100 * 3);
}

inline constexpr int64_t kGapsOf = 32, kLeastGaps = int64_t{64} << 20;

/// The block that a run takes from a GPU's driver for `planned` bytes: what lies between tensors is at most 3 % of them, and
/// somewhat more of few.
inline int64_t with_gaps(int64_t planned) { return planned + planned / kGapsOf + kLeastGaps; }

/// Bytes that can be planned of such a block.
inline int64_t without_gaps(int64_t block) { return (block - kLeastGaps) / (kGapsOf + 1) * kGapsOf; }

}  // namespace tessera::plan
