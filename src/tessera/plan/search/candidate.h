#pragma once
// A plan that the search has evaluated, with the result.
//
//   if (candidate.fits && candidate.seconds < best.seconds) best = candidate;
#include <cstdint>
#include <string>

#include "tessera/plan/plan.h"

namespace tessera::plan {

struct Candidate {
  Plan plan;
  bool fits = false;
  int64_t peak = 0;
  int64_t host = 0;    ///< bytes on the host, of the rank with the most
  double seconds = 0;  ///< of a step, simulated
  std::string why;
};

/// [Note: the same time] Predictions are off by some percent, so plans within kSameTime of the fastest take the same time. Of
/// those that take no more of the host and of the disk than the fastest, a search that is `thrifty` prefers the one with the
/// most memory to spare on the device. It goes through the plans by their peaks and prefers none that is slower than what it
/// preferred before: a larger budget, which adds plans of higher peaks, does not make the preferred one slower.
inline constexpr double kSameTime = 0.01;

}  // namespace tessera::plan
