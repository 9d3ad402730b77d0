#pragma once
// Happens-before within one pass (plan/clocks.h), between lines of a file.
//
//   Order order(checker, pass);
//   order.before(gather, forward);       // indices of checker.lines()
#include <string>
#include <utility>
#include <vector>

#include "tessera/plan/clocks.h"
#include "tessera/plan/rules/checker.h"

namespace tessera::plan {

class Order {
 public:
  Order(const Checker& checker, const Pass& pass) : begin_(pass.begin) {
    for (int k = pass.begin; k < pass.end; ++k) {
      std::vector<int> wait;
      for (const int earlier : checker.waits(k))
        if (earlier >= begin_ && earlier < k) wait.push_back(earlier - begin_);
      clocks_.add(checker.in(k).lane, wait);
    }
  }

  /// Whether `a` is done when `b` starts; lines before the pass always are.
  bool before(int a, int b) const { return a < begin_ || clocks_.before(a - begin_, b - begin_); }

 private:
  const int begin_;
  Clocks clocks_;
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
