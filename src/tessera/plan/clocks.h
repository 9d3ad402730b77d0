#pragma once
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
#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::plan {

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

}  // namespace tessera::plan
