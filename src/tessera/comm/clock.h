#pragma once
// Time that passes, of no day.
//
//   const Clock::time_point then = Clock::now();
//   if (seconds_since(then) > 5) ...
#include <chrono>

namespace tessera::comm {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

}  // namespace tessera::comm
