#pragma once
// Checks the bytes of one rank's arena: no range may be taken while any part of it is in use, or before the last user
// of that part is certainly done. Internal to the rules.
//
//   ArenaRules arena(checker, order);
//   arena.take(gather, slot, bytes, "slot");    // reports the line that uses the bytes
//   arena.give(gather, slot, release);
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/rules/checker.h"
#include "tessera/plan/rules/order.h"

namespace tessera::plan {

class ArenaRules {
 public:
  ArenaRules(Checker& checker, const Order& order) : checker_(checker), order_(order) {}

  void take(int k, int64_t at, int64_t bytes, const std::string& what) {
    if (at < 0 || bytes <= 0) return;
    const Range range{at, at + bytes, k};
    for (const Range& used : used_)
      if (overlap(used, range))
        checker_.report(k, "arena",
                        "its " + what + " " + text(range) + " overlaps " + text(used) + ", in use since " +
                            checker_.at(used.by) + "; give it another offset or end that use first");
    for (const Range& past : past_)
      if (overlap(past, range) && !order_.before(past.by, k))
        checker_.report(k, "arena",
                        "its " + what + " " + text(range) + " may be written before " + checker_.at(past.by) +
                            " is done with " + text(past) + "; wait for that line");
    std::erase_if(past_, [&](const Range& past) { return past.begin >= range.begin && past.end <= range.end; });
    used_.push_back(range);
  }

  /// Frees the range that `taker` took at offset `at` once line `k` is done.
  void give(int taker, int64_t at, int k) {
    const auto found =
        std::find_if(used_.begin(), used_.end(), [&](const Range& r) { return r.begin == at && r.by == taker; });
    if (found == used_.end()) return;
    past_.push_back({found->begin, found->end, k});
    used_.erase(found);
  }

  /// The range becomes part of a larger one.
  void forget(int taker, int64_t at) {
    std::erase_if(used_, [&](const Range& r) { return r.begin == at && r.by == taker; });
  }

 private:
  struct Range {
    int64_t begin, end;
    int by;  // line that took it, or that used it last
  };
  static bool overlap(const Range& a, const Range& b) { return a.begin < b.end && b.begin < a.end; }
  static std::string text(const Range& r) { return "[" + std::to_string(r.begin) + ", " + std::to_string(r.end) + ")"; }

  Checker& checker_;
  const Order& order_;
  std::vector<Range> used_, past_;
};

}  // namespace tessera::plan
