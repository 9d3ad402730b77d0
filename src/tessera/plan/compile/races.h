#pragma once
// Finds instructions that use the same memory in no order, if lanes are streams.
//
//   for (const Race& race : find_races(model, plan, schedule, rank)) std::cerr << to_string(race, schedule) << "\n";
//
// [Note: races] Two instructions race if they use the same bytes, one of them writes, and neither happens before the
// other (Clocks). Bytes that were freed and taken again are the same bytes: the compute lane takes and frees the
// memory of activations in the order of the list, and whatever was freed until then may be what an instruction gets.
// So who takes memory comes after every use of all memory freed before it. As in FastTrack (Flanagan and Freund 2009) the
// search keeps no pairs: for each range of bytes and each lane the last read and the last write, because the
// instructions of a lane are in order. It looks at each instruction once.
#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "tessera/plan/effects.h"
#include "tessera/plan/schedule.h"

namespace tessera::plan {

// Happens-before in a list of instructions whose lanes are streams: what is certainly done when an instruction starts.
//
//   const Clocks clocks(schedule.list);
//   clocks.before(gather, forward);       // indices of the list
//
// [Note: happens-before] Only two things order instructions: those of a lane run one after the other, and an
// instruction starts after those that it waits for. The order of the list orders nothing: the host issues instructions
// and does not wait until they are done. The relation is Lamport's (1978). Each instruction has a vector clock (Mattern
// 1989): for each lane the last instruction that is done when it starts. Instructions of a lane are done in order, so
// all earlier ones are done as well, and `a` is before `b` if b's entry for a's lane is `a` or later. A schedule starts
// after all instructions of the one before it.

/// By lane: the index of an instruction, -1 for none.
using Clock = std::array<int, kLaneCount>;
inline constexpr Clock kNever = [] {
  Clock clock{};
  clock.fill(-1);
  return clock;
}();
/// Raises each entry of `clock` to that of `other`.
inline void join(Clock& clock, const Clock& other) {
  for (size_t lane = 0; lane < clock.size(); ++lane) clock[lane] = std::max(clock[lane], other[lane]);
}

class Clocks {
 public:
  Clocks() = default;
  explicit Clocks(const std::vector<Instruction>& list);

  /// Appends an instruction; `wait` are indices of earlier ones.
  void add(Lane lane, std::span<const int> wait);

  /// What is done when instruction `i` starts.
  const Clock& at(int i) const { return done_[i]; }
  /// Whether `a` is done when `b` starts.
  bool before(int a, int b) const { return a < b && done_[b][static_cast<int>(lanes_[a])] >= a; }

 private:
  std::vector<Lane> lanes_;
  std::vector<Clock> done_;
  Clock last_ = kNever;  // of each lane
};

struct Race {
  int first, second;   ///< indices of the list
  std::string memory;  ///< "the parameters gathered for blocks.3, arena [0, 4096)", "memory taken at its place"
  bool operator==(const Race&) const = default;
};

/// All races of one schedule, by the second instruction.
std::vector<Race> find_races(const ModelSpec& model, const Plan& plan, const Schedule& schedule, int rank);

/// "fetch blocks.3, micro-batch 0 (i 57, h2d) does not wait for backward blocks.4 ... (i 55, compute): both use ...".
std::string to_string(const Race& race, const Schedule& schedule);

/// Two steps of a walk in no order; `use` is the second's, null for memory that it takes at its place.
struct Clash {
  int first, second;
  const Use* use;
};
std::vector<Clash> clashes(const std::vector<Step>& steps, const Clocks& clocks);

}  // namespace tessera::plan
