#pragma once
// A plan that the search has evaluated, with the result.
//
//   if (candidate.fits && candidate.seconds < best.seconds) best = candidate;
#include <algorithm>
#include <cmath>
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

/// [Note: the same time] Predictions are off by some percent, so plans within kSameTime of the fastest take the same time,
/// and memory decides between them: what one is slower by, it must need less by ten times as much. The least product of
/// seconds and the tenth root of the peak is preferred; a larger budget, which only adds plans of higher peaks, then never
/// makes the preferred one slower.
inline constexpr double kSameTime = 0.01;
inline double time_and_memory(double seconds, int64_t peak) {
  constexpr double kMemoryCounts = 0.1;
  return seconds * std::pow(static_cast<double>(std::max<int64_t>(1, peak)), kMemoryCounts);
}

}  // namespace tessera::plan
