#pragma once
// Happens-before within one pass: instructions of a lane run in order, and waits order instructions across lanes. Each
// instruction stores, for each lane, the last instruction that is certainly done (a vector clock).
//
//   Order order(checker, pass);
//   order.before(gather, forward);       // indices of checker.lines()
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tessera/plan/rules/checker.h"

namespace tessera::plan {

class Order {
 public:
  Order(const Checker& checker, const Pass& pass) : checker_(checker), begin_(pass.begin) {
    Clock last;  // of each lane
    last.fill(-1);
    for (int k = pass.begin; k < pass.end; ++k) {
      Clock done;
      done.fill(-1);
      const int lane = static_cast<int>(checker.in(k).lane);
      const auto join = [&](int earlier) {
        const Clock& other = done_[earlier - begin_];
        for (int l = 0; l < kLanes; ++l) done[l] = std::max(done[l], other[l]);
        int& own = done[static_cast<int>(checker.in(earlier).lane)];
        own = std::max(own, earlier);
      };
      if (last[lane] >= 0) join(last[lane]);
      for (int wait : checker.waits(k))
        if (wait >= begin_ && wait < k) join(wait);
      done_.push_back(done);
      last[lane] = k;
    }
  }

  /// Whether `a` is done when `b` starts; lines before the pass always are.
  bool before(int a, int b) const {
    return a < begin_ || (a < b && done_[b - begin_][static_cast<int>(checker_.in(a).lane)] >= a);
  }

 private:
  static constexpr int kLanes = kLaneCount;
  using Clock = std::array<int, kLanes>;
  const Checker& checker_;
  const int begin_;
  std::vector<Clock> done_;
};

/// Reports `k` unless `earlier` is done when it starts; `otherwise` is the possible fault.
inline void must_follow(Checker& checker, const Order& order, int k, int earlier, const std::string& rule,
                        const std::string& otherwise) {
  if (!order.before(earlier, k))
    checker.report(k, rule,
                   "does not wait for " + checker.at(earlier) + ": " + otherwise + "; add that line to \"wait\"");
}

/// Records `k` in `done`; reports and returns false if an earlier line did the same.
inline bool only_once(Checker& checker, int k, int& done) {
  if (done >= 0) checker.report(k, "order", "does again what " + checker.at(done) + " has done; remove one of them");
  return std::exchange(done, k) < 0;
}

}  // namespace tessera::plan
