#pragma once
// Watches the bytes of one rank's arena: no range is taken while a part of it is in use, or before the last user of
// that part is surely done. Internal to the rules.
//
//   ArenaRules arena(book, order);
//   arena.take(gather, slot, bytes, "slot");    // complains, naming the line that holds the bytes
//   arena.give(slot, release);
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/rules/book.h"
#include "tessera/plan/rules/order.h"

namespace tessera::plan {

class ArenaRules {
 public:
  ArenaRules(Book& book, const Order& order) : book_(book), order_(order) {}

  void take(int k, int64_t at, int64_t bytes, const std::string& what) {
    if (at < 0 || bytes <= 0) return;
    const Range range{at, at + bytes, k};
    for (const Range& used : used_)
      if (overlap(used, range))
        book_.complain(k, "arena",
                       "its " + what + " " + text(range) + " overlaps " + text(used) + ", in use since " +
                           book_.at(used.by) + "; give it another offset or end that use first");
    for (const Range& past : past_)
      if (overlap(past, range) && !order_.before(past.by, k))
        book_.complain(k, "arena",
                       "its " + what + " " + text(range) + " may be written before " + book_.at(past.by) +
                           " is done with " + text(past) + "; wait for that line");
    std::erase_if(past_, [&](const Range& past) { return past.begin >= range.begin && past.end <= range.end; });
    used_.push_back(range);
  }

  /// The range taken at offset `at` by `taker` is free once line `k` is done.
  void give(int taker, int64_t at, int k) {
    const auto found =
        std::find_if(used_.begin(), used_.end(), [&](const Range& r) { return r.begin == at && r.by == taker; });
    if (found == used_.end()) return;
    past_.push_back({found->begin, found->end, k});
    used_.erase(found);
  }

  /// The range is part of a larger one from here on.
  void forget(int taker, int64_t at) {
    std::erase_if(used_, [&](const Range& r) { return r.begin == at && r.by == taker; });
  }

 private:
  struct Range {
    int64_t begin, end;
    int by;  // line that took it, or that was the last to use it
  };
  static bool overlap(const Range& a, const Range& b) { return a.begin < b.end && b.begin < a.end; }
  static std::string text(const Range& r) { return "[" + std::to_string(r.begin) + ", " + std::to_string(r.end) + ")"; }

  Book& book_;
  const Order& order_;
  std::vector<Range> used_, past_;
};

}  // namespace tessera::plan
