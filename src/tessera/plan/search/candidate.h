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

}  // namespace tessera::plan
