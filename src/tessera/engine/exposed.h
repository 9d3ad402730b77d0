#pragma once
// Exposed time: the seconds of a step in which the compute lane waited, by cause. Computed from the times at which
// instructions ran; the simulator computes the same for a predicted step (plan/simulate/simulate.h).
//
//   const std::vector<double> waited = waited_for(schedule.list, times);
//   waited[3];                                           // seconds that instruction 3 kept it waiting
//   exposed_time(schedule.list, times, waited).copy;     // that copies did
#include <array>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::engine {

/// Seconds that the compute lane waited, by the kind of instruction that it waited for: collectives (of other lanes, or
/// inside its own instructions), copies between device, host and disk, and messages of other pipeline stages; `dispatch`:
/// with nothing to wait for, until its next instruction began.
struct Exposed {
  double comm = 0, copy = 0, stages = 0, dispatch = 0;
  Exposed& operator+=(const Exposed& other) {
    comm += other.comm, copy += other.copy, stages += other.stages, dispatch += other.dispatch;
    return *this;
  }
};

/// The seconds for which each instruction kept the compute lane waiting. `times[i]`: when instruction i began, after all
/// that it waits for, and when it ended.
std::vector<double> waited_for(const std::vector<plan::Instruction>& list,
                               const std::vector<std::array<double, 2>>& times);
/// Their sums by cause, without the collectives inside compute instructions.
Exposed exposed_time(const std::vector<plan::Instruction>& list, const std::vector<std::array<double, 2>>& times,
                     const std::vector<double>& waited);

}  // namespace tessera::engine
