#pragma once
// Why computing stood still in a step: of the times at which instructions ran, the chain of those that the compute lane
// waited for. The simulator says the same of a predicted step (plan/simulate/simulate.h).
//
//   Exposed waited = exposed_time(schedule.list, times);
//   waited.copy;                                        // seconds in which nothing but a copy kept it waiting
#include <array>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::engine {

/// Seconds in which the compute lane waited, by what ended last: collectives (of other lanes, or inside its own
/// instructions), copies between device, host and disk, and messages of other stages of a pipeline.
struct Exposed {
  double comm = 0, copy = 0, stages = 0;
  Exposed& operator+=(const Exposed& other) {
    comm += other.comm, copy += other.copy, stages += other.stages;
    return *this;
  }
};

/// `times[i]`: when instruction i began, all that it waits for being done, and when it ended. What compute instructions
/// spend in collectives of their own is not in it.
Exposed exposed_time(const std::vector<plan::Instruction>& list, const std::vector<std::array<double, 2>>& times);

}  // namespace tessera::engine
