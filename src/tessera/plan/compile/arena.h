#pragma once
// Assigns the slots of a schedule to one range of bytes at compile time and returns which instructions each reuse must
// wait for.
//
//   Arena arena;
//   int64_t at = arena.take(bytes, waits);   // waits: instructions that used these bytes before
//   arena.give(at, instruction);             // free after `instruction`
#include <algorithm>
#include <cstdint>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/plan/waits.h"

namespace tessera::plan {

class Arena {
 public:
  /// `remembers`: who used bytes last. Without, `waits` stay as they are, and offsets are the same.
  explicit Arena(bool remembers = true) : remembers_(remembers) {}

  /// Returns the lowest free offset for `bytes`; appends the instructions that last used any of these bytes to `waits`.
  int64_t take(int64_t bytes, Waits& waits) {
    int64_t at = 0;
    for (const Range& used : used_) {  // sorted by begin
      if (used.begin - at >= bytes) break;
      at = std::max(at, used.end);
    }
    used_.insert(
        std::lower_bound(used_.begin(), used_.end(), at, [](const Range& r, int64_t x) { return r.begin < x; }),
        Range{at, at + bytes});
    if (remembers_) last_users(at, bytes, waits);
    size_ = std::max(size_, at + bytes);
    return at;
  }

  /// Appends the instructions that used any of these bytes last before they were taken.
  void last_users(int64_t at, int64_t bytes, Waits& waits) const {
    for (const Past& past : past_)
      if (past.begin < at + bytes && past.end > at) waits.push_back(past.instruction);
  }

  void give(int64_t at, int instruction) {
    const auto it = std::find_if(used_.begin(), used_.end(), [&](const Range& r) { return r.begin == at; });
    if (it == used_.end()) throw InternalError("plan.arena", "offset " + std::to_string(at) + " is not in use");
    if (remembers_) {
      std::erase_if(past_, [&](const Past& past) { return past.begin >= it->begin && past.end <= it->end; });
      past_.push_back({it->begin, it->end, instruction});
    }
    used_.erase(it);
  }

  int64_t size() const { return size_; }
  bool empty() const { return used_.empty(); }

 private:
  struct Range {
    int64_t begin, end;
  };
  struct Past {
    int64_t begin, end;
    int instruction;
  };
  bool remembers_;
  std::vector<Range> used_;
  std::vector<Past> past_;
  int64_t size_ = 0;
};

}  // namespace tessera::plan
