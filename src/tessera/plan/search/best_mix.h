#pragma once
// The knapsack of [Note: mixing] (mix.h): how each block saves so that least is computed again. Internal to the planner.
//
//   best_mix({{keep, recompute}, {keep, recompute}}, int64_t{10} << 30, 0);   // {1, 0}: the first block recomputes
#include <cstdint>
#include <vector>

namespace tessera::plan {

/// A way of saving of one block as the knapsack sees it.
struct MixOption {
  double seconds = 0;  ///< computed again
  int64_t kept = 0;    ///< bytes on the device between forward and backward
  int64_t sent = 0;    ///< bytes offloaded in between
  bool operator==(const MixOption&) const = default;
};

/// The options with the least sum of seconds whose `kept` sum to `kept` at most and whose `sent` to `sent` at most: an
/// index into each block's list. Empty if there are none. Solved over the blocks by tables of (bytes kept, bytes
/// sent) -> least seconds, exact up to one part in 256 of `kept` and one in 16 of `sent`.
std::vector<int> best_mix(const std::vector<std::vector<MixOption>>& blocks, int64_t kept, int64_t sent);

}  // namespace tessera::plan
