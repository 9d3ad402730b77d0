#pragma once
// Exposed time: the seconds of a step in which the compute lane waited, by cause. Computed from the times at which
// instructions ran; the simulator computes the same for a predicted step (plan/simulate/simulate.h).
//
//   Exposed waited = exposed_time(schedule.list, times);
//   waited.copy;                                        // seconds that copies kept it waiting
#include <array>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::engine {

/// Seconds that the compute lane waited, by the kind of instruction that it waited for: collectives (of other lanes, or
/// inside its own instructions), copies between device, host and disk, and messages of other pipeline stages.
struct Exposed {
  double comm = 0, copy = 0, stages = 0;
  Exposed& operator+=(const Exposed& other) {
    comm += other.comm, copy += other.copy, stages += other.stages;
    return *this;
  }
};

/// `times[i]`: when instruction i began, after all that it waits for, and when it ended. The result does not include
/// the collectives inside compute instructions.
Exposed exposed_time(const std::vector<plan::Instruction>& list, const std::vector<std::array<double, 2>>& times);

}  // namespace tessera::engine
