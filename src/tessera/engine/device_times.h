#pragma once
// When the instructions of a schedule ran on a device, by events of its streams. The host only gives instructions to streams
// and runs ahead, so its clock says nothing of them.
//
//   DeviceTimes times(program, step);          // the compute lane comes to the schedule
//   times.began(index), times.ended(index);    // on the lane's thread, around what it gives to its stream
//   times.close(host_times);                   // behind all lanes
//   if (times.passed()) times.seconds();       // without a wait; or after await()
#include <array>
#include <vector>

#include "tessera/device/streams.h"
#include "tessera/plan/compile/program.h"

namespace tessera::engine {

/// Lanes whose instructions are done by code of the host; those of the others are enqueued on a stream.
constexpr bool works_on_host(plan::Lane lane) { return lane == plan::Lane::disk || lane == plan::Lane::host; }

class DeviceTimes {
 public:
  using Seconds = std::vector<std::array<double, 2>>;  ///< by instruction: when it began and ended

  DeviceTimes(plan::ProgramPtr program, int64_t step);
  void began(int index) { began_[static_cast<size_t>(index)].record(); }
  void ended(int index) { ended_[static_cast<size_t>(index)].record(); }
  /// `host`: the times of the host since it made this; an end is when the instruction's work had been given.
  void close(Seconds host);

  bool passed() const { return end_.passed(); }
  void await() const { end_.await(); }
  /// Since the device came to the schedule; of lanes that work on the host their own, by that clock.
  Seconds seconds() const;

  const plan::Program& program() const { return *program_; }
  int64_t step() const { return step_; }

 private:
  const plan::ProgramPtr program_;
  const int64_t step_;
  device::Mark start_{/*timed=*/true}, end_{/*timed=*/true};
  std::vector<device::Mark> began_, ended_;
  Seconds host_;
};

}  // namespace tessera::engine
