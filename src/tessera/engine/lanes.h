#pragma once
// The lanes of a rank: when an instruction of a schedule is issued, what it waits for, and what the device has done of it. The
// compute lane is the calling thread, each other one a thread of its own (memory/lane.h).
//
//   Lanes lanes(interpreter, times, store, by_device);
//   lanes.begin(run);
//   lanes.run(run, 0, count);            // instructions [0, count) of the list
//   lanes.end(run);                      // all of them are done, or given to the device
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/device/failure.h"
#include "tessera/engine/interpreter.h"
#include "tessera/engine/store/host_memory.h"
#include "tessera/engine/store/lane.h"
#include "tessera/plan/compile/compile.h"

namespace tessera::engine {

// How far the lanes of a device are. Behind each instruction its stream writes a number to page-locked memory of the host,
// which any thread can read without asking the device, and also once the device has failed.
//
//   DeviceProgress progress;
//   progress.begins(lane, {program, step, index});   // on the lane's thread, before it gives an instruction to its stream
//   progress.given(lane);                            // and behind it
//   for (const LaneProgress& lane : progress.look()) ...;

/// An instruction of a step.
struct ProgramPlace {
  plan::ProgramPtr program;
  int64_t step = 0;
  int index = 0;
  const plan::Instruction& instruction() const { return program->schedule.list[static_cast<size_t>(index)]; }
};

/// What a lane finished last on the device, and what it begins next or is at.
struct LaneProgress {
  plan::Lane lane;
  std::optional<ProgramPlace> finished, next;
  bool given = false;  ///< the stream has all of the next one: the host's thread is past it
};

/// "reduce blocks.2 (micro-batch 0) on reduce:dp_shard[0,1]", "fetch blocks.2, states on lane disk".
std::string describe(const plan::Instruction& instruction);
/// "forward blocks.3 (micro-batch 0), after forward blocks.2 (micro-batch 0)"; of a lane that has a next one.
std::string describe(const LaneProgress& lane);

class DeviceProgress {
 public:
  DeviceProgress();

  void begins(plan::Lane lane, ProgramPlace place);
  void given(plan::Lane lane);
  /// Of the lanes that were given anything. Empty where the device cannot write to the host. Any thread may ask.
  std::vector<LaneProgress> look();
  /// describe() of each lane that has something to do; empty: none has, or it cannot be known.
  std::string text();

 private:
  struct Open {
    uint32_t number;
    ProgramPlace place;
    bool given = false;
  };
  struct LaneState {
    uint32_t begun = 0;  // instructions, counted round
    std::deque<Open> open;
    std::optional<ProgramPlace> finished;
  };
  void forget_finished(plan::Lane lane);
  uint32_t* word(plan::Lane lane) const;

  HostMemory words_{HostMemory::Refused::drivers_own};
  std::mutex mutex_;
  bool works_ = true;
  std::array<LaneState, plan::kLaneCount> lanes_;
};

/// Reports the instruction a rank is at, for heartbeats and fault messages. The thread of the instruction's lane calls
/// it before the instruction (`ends` false) and, unless that failed, after it (`ends` true).
using Whereabouts = std::function<void(int64_t step, int index, const plan::Instruction& instruction, bool ends)>;

class Lanes {
 public:
  /// `by_device`: messages of tensors are enqueued on streams.
  Lanes(const Interpreter& interpreter, StepTimes& times, Store& store, bool by_device);

  using Runs = std::vector<std::shared_ptr<ScheduleRun>>;

  /// One schedule, or training passes side by side ([Note: side by side] of plan/compile/issue.h).
  void begin(const Runs& runs);
  /// Instructions [begin, end) of the list; those of other lanes are handed to their threads. Rethrows a lane's failure.
  void run(const std::shared_ptr<ScheduleRun>& shared, int begin, int end);
  /// Those of passes side by side up to their norms.
  void run_to_norms(const Runs& runs);
  void end(const Runs& runs);
  /// Gives instructions [0, end) to a graph that the device has begun (device::Backend::begin_graph), and joins their lanes.
  void capture(const std::shared_ptr<ScheduleRun>& shared, int end);
  /// The device was given a graph that has done them: what comes next comes after it.
  void repeated(ScheduleRun& run, int end);
  /// Waits until the threads are at no instruction: after a failure one may still be.
  void drain();
  /// Waits until the device has ended the last schedule.
  void await_device() const { end_.await(); }

  void on_instruction(Whereabouts whereabouts) { whereabouts_ = std::move(whereabouts); }
  /// Where each lane of the device is; null on a CPU.
  const std::shared_ptr<DeviceProgress>& progress() const { return progress_; }

 private:
  LaneThread& thread(plan::Lane lane);
  void advance(const std::shared_ptr<ScheduleRun>& shared, int index);
  void issue(const std::shared_ptr<ScheduleRun>& shared, int index);
  void follow(ScheduleRun& run, const plan::Instruction& in);
  void await_turn(const ScheduleRun& run, int index);
  void perform(ScheduleRun& run, int index);
  void join(const ScheduleRun& run, int begin, int end);

  StepTimes& times_;
  Store& store_;
  const bool far_, by_device_;  // far: computes on a device: `events_` say what was given to it, marks what is done
  Events events_;
  // by instruction, those of runs side by side behind each other: what it did; its memory taken, its message made
  std::vector<device::Mark> marks_, prepared_;
  device::Mark start_, end_;  // of the schedule, on the compute lane
  std::shared_ptr<DeviceProgress> progress_;
  std::optional<device::UnderWay> under_way_, swap_under_way_;
  Whereabouts whereabouts_;
  std::array<std::unique_ptr<LaneThread>, plan::kLaneCount> threads_;  // the host's is made when first used
};

}  // namespace tessera::engine
