#pragma once
// Parameters are gathered before use, used in the slot they were gathered into, and released once after their last use.
// Follows one pass line by line. Internal to the rules.
//
//   Residency residency(checker, pass, order, arena, sizes);
//   residency.gather(k); residency.use(k); residency.release(k);   // in the order of the lines
//   residency.finish();                                            // reports what is still gathered
#include <string>
#include <vector>

#include "tessera/plan/rules/arena_rules.h"
#include "tessera/plan/rules/checker.h"
#include "tessera/plan/rules/order.h"
#include "tessera/plan/rules/size_rules.h"

namespace tessera::plan {

class Residency {
 public:
  Residency(Checker& checker, const Pass& pass, const Order& order, ArenaRules& arena, SizeRules& sizes)
      : checker_(checker), pass_(pass), order_(order), arena_(arena), sizes_(sizes), units_(checker.units().size()) {}

  void gather(int k) {
    Unit& unit = units_[checker_.unit(k)];
    if (unit.gather >= 0) {
      checker_.report(
          unit.gather, "residency",
          "is never released before " + checker_.at(k) + " gathers the unit again; put its release after its last use");
      arena_.give(unit.gather, checker_.in(unit.gather).slot, k);
    }
    const bool sharded = !checker_.groups_of(k).empty();
    if (sharded && checker_.in(k).slot < 0)
      checker_.report(k, "form", "gathers from a group and has no \"slot\" to gather into");
    sizes_.whole(k, "all_gather");
    arena_.take(k, checker_.in(k).slot, checker_.in(k).bytes, "slot");
    unit.gather = k;
    unit.uses.clear();
  }

  /// Checks a use of gathered parameters; false if they are not gathered.
  bool use(int k, const char* verb = "uses") {
    Unit& unit = units_[checker_.unit(k)];
    if (unit.gather < 0) {
      const int before = unit.released, later = next_gather(k);
      std::string text = std::string(verb) + " parameters that are not gathered";
      if (before >= 0) text += ": " + checker_.at(before) + " has released them";
      text += later >= 0 ? "; move " + checker_.at(later) + " before this line" : "; put a gather before this line";
      checker_.report(k, "residency", text);
      return false;
    }
    if (checker_.in(unit.gather).slot != checker_.in(k).slot)
      checker_.report(k, "residency",
                      "reads slot " + slot_text(checker_.in(k).slot) + ", but " + checker_.at(unit.gather) +
                          " filled slot " + slot_text(checker_.in(unit.gather).slot) + "; use that one");
    follow(k, unit.gather, "the parameters may not have arrived");
    unit.uses.push_back(k);
    return true;
  }

  void release(int k) {
    if (!use(k, "releases")) return;
    Unit& unit = units_[checker_.unit(k)];
    unit.uses.pop_back();  // the release itself
    for (int earlier : unit.uses) follow(k, earlier, "the parameters may still be read");
    arena_.give(unit.gather, checker_.in(unit.gather).slot, k);
    unit.gather = -1;
    unit.released = k;
  }

  void finish() {
    for (const Unit& unit : units_)
      if (unit.gather >= 0)
        checker_.report(unit.gather, "residency", "is never released; put its release after its last use");
  }

 private:
  struct Unit {
    int gather = -1, released = -1;  // lines: the current gather and the last release
    std::vector<int> uses;           // since the gather
  };

  void follow(int k, int earlier, const char* otherwise) {
    must_follow(checker_, order_, k, earlier, "residency", otherwise);
  }

  int next_gather(int k) const {
    for (int later = k + 1; later < pass_.end; ++later)
      if (checker_.in(later).op == Op::gather && checker_.unit(later) == checker_.unit(k)) return later;
    return -1;
  }

  Checker& checker_;
  const Pass& pass_;
  const Order& order_;
  ArenaRules& arena_;
  SizeRules& sizes_;
  std::vector<Unit> units_;
};

}  // namespace tessera::plan
