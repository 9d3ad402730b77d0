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

/// [Note: the same time] Predictions are off by some percent, so plans within kSameTime of the fastest take the same time. A
/// search that is `thrifty`, which those of recipes are not yet, prefers the one with the most memory to spare: with the lowest peak on the device, then with least on the host. Where
/// a larger budget only adds plans, the preferred one is never slower with it: what it adds has higher peaks, so another one
/// is only preferred where the one before is beyond kSameTime of the new fastest.
inline constexpr double kSameTime = 0.01;

}  // namespace tessera::plan
