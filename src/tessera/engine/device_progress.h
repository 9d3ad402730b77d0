#pragma once
// How far the lanes of a device are. Behind each instruction its stream writes a number to page-locked memory of the host,
// which any thread can read without asking the device, and also once the device has failed.
//
//   DeviceProgress progress;
//   progress.begins(lane, {program, step, index});   // on the lane's thread, before it gives an instruction to its stream
//   progress.given(lane);                            // and behind it
//   for (const LaneProgress& lane : progress.look()) ...;
#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/engine/memory/host_memory.h"
#include "tessera/plan/compile/compile.h"

namespace tessera::engine {

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

}  // namespace tessera::engine
