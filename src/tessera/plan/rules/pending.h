#pragma once
// Gradients that wait for an update in a later pass of the rank, ahead of their unit's next gather (updates just in
// time). Follows one rank from pass to pass. Internal to the rules.
//
//   Pending pending;
//   pending.add(unit, norm);                      // at the end of a pass: counted there, and not used
//   pending.refuse_gather(book, k);               // in the next
//   pending.take(unit);                           // an update uses it
//   pending.end(book);                            // after the rank's last pass
#include <map>

#include "tessera/plan/rules/book.h"

namespace tessera::plan {

class Pending {
 public:
  /// `in_the_middle`: the lines begin in the middle of a run, and what is before them may have left some.
  explicit Pending(bool in_the_middle = false) : unknown_(in_the_middle) {}

  void add(int unit, int norm) { norms_[unit] = norm; }
  bool may_be(int unit) const { return unknown_ || norms_.contains(unit); }
  /// Whether there was one for an update to use.
  bool take(int unit) {
    const bool found = norms_.erase(unit) > 0 || unknown_;
    used_ = used_ || found;
    return found;
  }

  void refuse_gather(Book& book, int k) const {
    if (const auto found = norms_.find(book.unit(k)); found != norms_.end())
      book.complain(k, "order",
                    "gathers parameters before the update for which " + book.at(found->second) +
                        " has counted their gradient; put that update before it");
  }

  /// None may be left when line `k` runs.
  void refuse(Book& book, int k) {
    for (const auto& [unit, norm] : norms_)
      book.complain(k, "order",
                    "comes before the update of " + book.units()[unit] + ", whose gradient " + book.at(norm) +
                        " has counted; put that update before it");
    norms_.clear();
    unknown_ = false;
  }

  /// Where some were used in later passes the lines may end with others; where none were, those left are forgotten.
  void end(Book& book) const {
    for (const auto& [unit, norm] : norms_)
      if (!used_)
        book.complain(
            norm, "order",
            "counts the gradient of " + book.units()[unit] + ", which no update uses; put its update after this line");
  }

 private:
  std::map<int, int> norms_;  // by unit: the norm that has counted it
  bool unknown_, used_ = false;
};

}  // namespace tessera::plan
