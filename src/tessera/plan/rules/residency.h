#pragma once
// Parameters are gathered before they are used, stay where they were gathered, and are released once after their last
// use. Follows one pass line by line. Internal to the rules.
//
//   Residency residency(book, pass, order, arena, sizes);
//   residency.gather(k); residency.use(k); residency.release(k);   // as the lines come
//   residency.finish();                                            // what is still gathered was forgotten
#include <string>
#include <vector>

#include "tessera/plan/rules/arena_rules.h"
#include "tessera/plan/rules/book.h"
#include "tessera/plan/rules/order.h"
#include "tessera/plan/rules/size_rules.h"

namespace tessera::plan {

class Residency {
 public:
  Residency(Book& book, const Pass& pass, const Order& order, ArenaRules& arena, SizeRules& sizes)
      : book_(book), pass_(pass), order_(order), arena_(arena), sizes_(sizes), units_(book.units().size()) {}

  void gather(int k) {
    Unit& unit = units_[book_.unit(k)];
    if (unit.gather >= 0) {
      book_.complain(
          unit.gather, "residency",
          "is never released before " + book_.at(k) + " gathers the unit again; put its release after its last use");
      arena_.give(unit.gather, book_.in(unit.gather).slot, k);
    }
    const bool sharded = !book_.groups_of(k).empty();
    if (sharded && book_.in(k).slot < 0)
      book_.complain(k, "form", "gathers from a group and has no \"slot\" to gather into");
    sizes_.whole(k, "all_gather");
    arena_.take(k, book_.in(k).slot, book_.in(k).bytes, "slot");
    unit.gather = k;
    unit.uses.clear();
  }

  /// A use of gathered parameters; false when there are none.
  bool use(int k, const char* verb = "uses") {
    Unit& unit = units_[book_.unit(k)];
    if (unit.gather < 0) {
      const int before = unit.released, later = next_gather(k);
      std::string text = std::string(verb) + " parameters that are not gathered";
      if (before >= 0) text += ": " + book_.at(before) + " has released them";
      text += later >= 0 ? "; move " + book_.at(later) + " before this line" : "; put a gather before this line";
      book_.complain(k, "residency", text);
      return false;
    }
    if (book_.in(unit.gather).slot != book_.in(k).slot)
      book_.complain(k, "residency",
                     "reads slot " + slot_text(book_.in(k).slot) + ", but " + book_.at(unit.gather) + " filled slot " +
                         slot_text(book_.in(unit.gather).slot) + "; use that one");
    follow(k, unit.gather, "the parameters may not have arrived");
    unit.uses.push_back(k);
    return true;
  }

  void release(int k) {
    if (!use(k, "releases")) return;
    Unit& unit = units_[book_.unit(k)];
    unit.uses.pop_back();  // the release itself
    for (int earlier : unit.uses) follow(k, earlier, "the parameters may still be read");
    arena_.give(unit.gather, book_.in(unit.gather).slot, k);
    unit.gather = -1;
    unit.released = k;
  }

  void finish() {
    for (const Unit& unit : units_)
      if (unit.gather >= 0)
        book_.complain(unit.gather, "residency", "is never released; put its release after its last use");
  }

 private:
  struct Unit {
    int gather = -1, released = -1;  // lines: of what is gathered now, and of the last release
    std::vector<int> uses;           // since the gather
  };

  void follow(int k, int earlier, const char* otherwise) {
    must_follow(book_, order_, k, earlier, "residency", otherwise);
  }

  int next_gather(int k) const {
    for (int later = k + 1; later < pass_.end; ++later)
      if (book_.in(later).op == Op::gather && book_.unit(later) == book_.unit(k)) return later;
    return -1;
  }

  Book& book_;
  const Pass& pass_;
  const Order& order_;
  ArenaRules& arena_;
  SizeRules& sizes_;
  std::vector<Unit> units_;
};

}  // namespace tessera::plan
