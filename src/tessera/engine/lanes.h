#pragma once
// The lanes of a rank: when an instruction of a schedule is issued, what it waits for, and what the device has done of it. The
// compute lane is the calling thread, each other one a thread of its own (memory/lane.h).
//
//   Lanes lanes(interpreter, times, store, by_device);
//   lanes.begin(run);
//   lanes.run(run, 0, count);            // instructions [0, count) of the list
//   lanes.end(run);                      // all of them are done, or given to the device
#include <array>
#include <functional>
#include <memory>
#include <optional>

#include "tessera/device/failure.h"
#include "tessera/engine/device_progress.h"
#include "tessera/engine/interpreter.h"
#include "tessera/engine/memory/lane.h"

namespace tessera::engine {

/// Reports the instruction a rank is at, for heartbeats and fault messages. The thread of the instruction's lane calls
/// it before the instruction (`ends` false) and, unless that failed, after it (`ends` true).
using Whereabouts = std::function<void(int64_t step, int index, const plan::Instruction& instruction, bool ends)>;

class Lanes {
 public:
  /// `by_device`: messages of tensors are enqueued on streams.
  Lanes(Interpreter& interpreter, StepTimes& times, Store& store, bool by_device);

  void begin(ScheduleRun& run);
  /// Instructions [begin, end) of the list; those of other lanes are handed to their threads. Rethrows a lane's failure.
  void run(const std::shared_ptr<ScheduleRun>& shared, int begin, int end);
  void end(const ScheduleRun& run);
  /// Waits until the threads are at no instruction: after a failure one may still be.
  void drain();
  /// Waits until the device has ended the last schedule.
  void await_device() const { end_.await(); }

  void on_instruction(Whereabouts whereabouts) { whereabouts_ = std::move(whereabouts); }
  /// Where each lane of the device is; null on a CPU.
  const std::shared_ptr<DeviceProgress>& progress() const { return progress_; }

 private:
  LaneThread& thread(plan::Lane lane);
  void issue(const std::shared_ptr<ScheduleRun>& shared, int index);
  void follow(ScheduleRun& run, const plan::Instruction& in);
  void await_turn(const ScheduleRun& run, int index);
  void perform(ScheduleRun& run, int index);
  void join(const ScheduleRun& run);

  Interpreter& interpreter_;
  StepTimes& times_;
  Store& store_;
  const bool far_, by_device_;  // far: computes on a device: `events_` say what was given to it, marks what is done
  Events events_;
  std::vector<device::Mark> marks_, prepared_;  // by instruction: what it did; its memory taken, its message made
  device::Mark start_, end_;                    // of the schedule, on the compute lane
  std::shared_ptr<DeviceProgress> progress_;
  std::optional<device::UnderWay> under_way_, swap_under_way_;
  Whereabouts whereabouts_;
  std::array<std::unique_ptr<LaneThread>, plan::kLaneCount> threads_;  // the host's is made when first used
};

}  // namespace tessera::engine
