#pragma once
// Shards that are updated in partitions (Strategy::two_level): updated partitions are all-gathered over the replicas
// before anyone gathers the shard, once a step. Follows one pass. Internal to the rules.
//
//   PartitionRules partitions(checker, order, sizes, tiers);
//   partitions.update(k); partitions.gather_outer(k); partitions.gather(k);     // in the order of the lines
//   partitions.finish();
#include <vector>

#include "tessera/plan/rules/checker.h"
#include "tessera/plan/rules/order.h"
#include "tessera/plan/rules/size_rules.h"
#include "tessera/plan/rules/tier_rules.h"

namespace tessera::plan {

class PartitionRules {
 public:
  PartitionRules(Checker& checker, const Order& order, SizeRules& sizes, TierRules& tiers)
      : checker_(checker), order_(order), sizes_(sizes), tiers_(tiers), units_(checker.units().size()) {}

  void update(int k) { units_[checker_.unit(k)].update = k; }

  /// Each rank has updated its partition of the shard; from here on all replicas have all partitions.
  void gather_outer(int k) {
    Unit& unit = units_[checker_.unit(k)];
    sizes_.from_partitions(k);
    if (unit.update < 0)
      checker_.report(k, "order", "gathers a partition that no update has changed; put it after the unit's update");
    else
      follow(k, unit.update, "its partition may not be updated");
    if (checker_.in(k).slot < 0 && tiers_.is_offloaded(checker_.unit(k), Part::parameters))
      tiers_.use_at_rest(k, Part::parameters, /*changes=*/true, /*left=*/false);
    else
      tiers_.use(k, Part::parameters, checker_.in(k).slot, /*changes=*/true);
    only_once(checker_, k, unit.gather);
  }

  /// Line `k` gathers parameters, whose partitions must all be there.
  void gather(int k) {
    const Unit& unit = units_[checker_.unit(k)];
    if (unit.update < 0 || !sizes_.partitioned(checker_.unit(k))) return;
    if (unit.gather >= 0)
      follow(k, unit.gather, "the other replicas' partitions may not have arrived");
    else
      checker_.report(k, "order",
                      "gathers what " + checker_.at(unit.update) +
                          " has updated a partition of; put the unit's gather_outer before this line");
  }

  void finish() {
    for (size_t u = 0; u < units_.size(); ++u)
      if (units_[u].update >= 0 && units_[u].gather < 0 && sizes_.partitioned(static_cast<int>(u)))
        checker_.report(units_[u].update, "order",
                        "updates a partition that the other replicas never get; put a gather_outer after it");
  }

 private:
  struct Unit {
    int update = -1, gather = -1;  // lines
  };

  void follow(int k, int earlier, const char* otherwise) {
    must_follow(checker_, order_, k, earlier, "order", otherwise);
  }

  Checker& checker_;
  const Order& order_;
  SizeRules& sizes_;
  TierRules& tiers_;
  std::vector<Unit> units_;
};

}  // namespace tessera::plan
