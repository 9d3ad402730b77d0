#pragma once
// Just-in-time updates: gradients that wait for an update in a later pass of the rank, before their unit's next gather.
// Follows one rank from pass to pass. Internal to the rules.
//
//   Pending pending;
//   pending.add(unit, norm);                      // end of a pass: in the norm, not applied yet
//   pending.refuse_gather(checker, k);            // in the next pass
//   pending.take(unit);                           // an update applies it
//   pending.end(checker);                         // after the rank's last pass
#include <map>

#include "tessera/plan/rules/checker.h"

namespace tessera::plan {

class Pending {
 public:
  /// `in_the_middle`: the lines begin in the middle of a run, so that earlier lines may have left pending gradients.
  explicit Pending(bool in_the_middle = false) : unknown_(in_the_middle) {}

  void add(int unit, int norm) { norms_[unit] = norm; }
  bool may_be(int unit) const { return unknown_ || norms_.contains(unit); }
  /// Whether there was a gradient for an update to apply.
  bool take(int unit) {
    const bool found = norms_.erase(unit) > 0 || unknown_;
    used_ = used_ || found;
    return found;
  }

  void refuse_gather(Checker& checker, int k) const {
    if (const auto found = norms_.find(checker.unit(k)); found != norms_.end())
      checker.report(k, "order",
                     "gathers parameters before the update for which " + checker.at(found->second) +
                         " has counted their gradient; put that update before it");
  }

  /// No gradient may be pending when line `k` runs.
  void refuse(Checker& checker, int k) {
    for (const auto& [unit, norm] : norms_)
      checker.report(k, "order",
                     "comes before the update of " + checker.units()[unit] + ", whose gradient " + checker.at(norm) +
                         " has counted; put that update before it");
    norms_.clear();
    unknown_ = false;
  }

  /// If later passes applied some gradients, the lines may end with others pending; otherwise those left are reported.
  void end(Checker& checker) const {
    for (const auto& [unit, norm] : norms_)
      if (!used_)
        checker.report(norm, "order",
                       "counts the gradient of " + checker.units()[unit] +
                           ", which no update uses; put its update after this line");
  }

 private:
  std::map<int, int> norms_;  // by unit: the norm that includes its gradient
  bool unknown_, used_ = false;
};

}  // namespace tessera::plan
