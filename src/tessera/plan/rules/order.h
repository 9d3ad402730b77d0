#pragma once
// Happens-before within one pass: lanes run their instructions one after the other, waits order across lanes.
// Each instruction keeps, for each lane, the last instruction of it that is surely done (a vector clock).
//
//   Order order(book, pass);
//   order.before(gather, forward);       // indices of book.lines()
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tessera/plan/rules/book.h"

namespace tessera::plan {

class Order {
 public:
  Order(const Book& book, const Pass& pass) : book_(book), begin_(pass.begin) {
    Clock last;  // of each lane
    last.fill(-1);
    for (int k = pass.begin; k < pass.end; ++k) {
      Clock done;
      done.fill(-1);
      const int lane = static_cast<int>(book.in(k).lane);
      const auto join = [&](int earlier) {
        const Clock& other = done_[earlier - begin_];
        for (int l = 0; l < kLanes; ++l) done[l] = std::max(done[l], other[l]);
        int& own = done[static_cast<int>(book.in(earlier).lane)];
        own = std::max(own, earlier);
      };
      if (last[lane] >= 0) join(last[lane]);
      for (int wait : book.waits(k))
        if (wait >= begin_ && wait < k) join(wait);
      done_.push_back(done);
      last[lane] = k;
    }
  }

  /// Whether `a` is done when `b` starts; lines before the pass are.
  bool before(int a, int b) const {
    return a < begin_ || (a < b && done_[b - begin_][static_cast<int>(book_.in(a).lane)] >= a);
  }

 private:
  static constexpr int kLanes = kLaneCount;
  using Clock = std::array<int, kLanes>;
  const Book& book_;
  const int begin_;
  std::vector<Clock> done_;
};

/// Complains at `k` unless `earlier` is done when it starts; `otherwise` says what could go wrong.
inline void must_follow(Book& book, const Order& order, int k, int earlier, const std::string& rule,
                        const std::string& otherwise) {
  if (!order.before(earlier, k))
    book.complain(k, rule, "does not wait for " + book.at(earlier) + ": " + otherwise + "; add that line to \"wait\"");
}

/// Notes in `done` that `k` did it; complains, and gives false, when an earlier line did already.
inline bool only_once(Book& book, int k, int& done) {
  if (done >= 0) book.complain(k, "order", "does again what " + book.at(done) + " has done; remove one of them");
  return std::exchange(done, k) < 0;
}

}  // namespace tessera::plan
