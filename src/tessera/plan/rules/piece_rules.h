#pragma once
// Shards that are updated in pieces (Strategy::two_level): what an update has changed is handed to the ranks that hold
// the same shard before anyone gathers it, once a step. Follows one pass. Internal to the rules.
//
//   PieceRules pieces(book, order, sizes, tiers);
//   pieces.update(k); pieces.gather_outer(k); pieces.gather(k);     // as the lines come
//   pieces.finish();
#include <vector>

#include "tessera/plan/rules/book.h"
#include "tessera/plan/rules/order.h"
#include "tessera/plan/rules/size_rules.h"
#include "tessera/plan/rules/tier_rules.h"

namespace tessera::plan {

class PieceRules {
 public:
  PieceRules(Book& book, const Order& order, SizeRules& sizes, TierRules& tiers)
      : book_(book), order_(order), sizes_(sizes), tiers_(tiers), units_(book.units().size()) {}

  void update(int k) { units_[book_.unit(k)].update = k; }

  /// Each rank has updated its piece of the shard: they have each other's from here on.
  void gather_outer(int k) {
    Unit& unit = units_[book_.unit(k)];
    sizes_.from_pieces(k);
    if (unit.update < 0)
      book_.complain(k, "order", "hands out a piece that no update has changed; put it after the unit's update");
    else
      follow(k, unit.update, "its piece may not be updated");
    if (book_.in(k).slot < 0 && tiers_.rests_elsewhere(book_.unit(k), Part::parameters))
      tiers_.use_at_rest(k, Part::parameters, /*changes=*/true, /*left=*/false);
    else
      tiers_.use(k, Part::parameters, book_.in(k).slot, /*changes=*/true);
    only_once(book_, k, unit.gather);
  }

  /// Line `k` gathers parameters, which must be whole again.
  void gather(int k) {
    const Unit& unit = units_[book_.unit(k)];
    if (unit.update < 0 || !sizes_.in_pieces(book_.unit(k))) return;
    if (unit.gather >= 0)
      follow(k, unit.gather, "the other replicas' pieces may not have arrived");
    else
      book_.complain(k, "order",
                     "gathers what " + book_.at(unit.update) +
                         " has updated a piece of; put the unit's gather_outer before this line");
  }

  void finish() {
    for (size_t u = 0; u < units_.size(); ++u)
      if (units_[u].update >= 0 && units_[u].gather < 0 && sizes_.in_pieces(static_cast<int>(u)))
        book_.complain(units_[u].update, "order",
                       "updates a piece that the other replicas never get; put a gather_outer after it");
  }

 private:
  struct Unit {
    int update = -1, gather = -1;  // lines
  };

  void follow(int k, int earlier, const char* otherwise) { must_follow(book_, order_, k, earlier, "order", otherwise); }

  Book& book_;
  const Order& order_;
  SizeRules& sizes_;
  TierRules& tiers_;
  std::vector<Unit> units_;
};

}  // namespace tessera::plan
