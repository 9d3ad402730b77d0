#pragma once
// How a plan file names units: by name, range or prefix. Internal to reading and writing plan files.
//
//   matching("blocks.2-5", {"stem", "blocks.0", ...})     // their indices
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/plan/plan_keys.h"

namespace tessera::plan {

/// "blocks.12" is {"blocks.", 12}; a name without a number has index -1.
struct Numbered {
  std::string stem;
  int64_t index = -1;
};
Numbered numbered(std::string_view name);

/// Indices of the units that `pattern` names: a name, a range "blocks.2-5", or a prefix "blocks.*". Empty if there are
/// none or if a part of the range does not exist.
std::vector<size_t> matching(std::string_view pattern, const std::vector<std::string>& names);

// What the user set for some units in a recipe, and how a plan takes it.
//
//   keys.units.push_back(unit_keys_of("high_noise.blocks.* strategy=shard_grad_op", "recipe: plan.units"));
//   const UnitsByHand by_hand(keys.units, model, {"high_noise", "low_noise"});
//   by_hand.apply(plan.units);                       // for all experts
//   plan = by_hand.with_experts(plan);               // and what one of them has of its own: Plan::of_expert

/// Reads "MATCH key=value ...", the one line that a [[plan.units]] table is in a resolved recipe and on a command line.
/// The keys are those of [[units]] in plan.toml, a site is "sites.NAME". Throws UserError (usage) at `where` for an
/// unknown key or value, or where there is none.
UnitKeys unit_keys_of(std::string_view text, const std::string& where);

class UnitsByHand {
 public:
  /// `experts`: their names; empty for a single model. Throws UserError (usage) for a pattern that no unit matches,
  /// with the units that there are, and for a key that one expert cannot have of its own.
  UnitsByHand(const std::vector<UnitKeys>& given, const ModelSpec& model, const std::vector<std::string>& experts);
  ~UnitsByHand();

  /// What was set for all experts.
  void apply(std::vector<UnitPlan>& units) const;
  /// The plan with what was set for one expert: the first expert's in `units`, the others' in `of_expert`.
  Plan with_experts(Plan plan) const;
  /// Whether `key` of the unit was set for all experts.
  bool sets(size_t unit, std::string_view key) const;
  bool any_of_one_expert() const;

 private:
  struct Table;
  std::vector<std::unique_ptr<const Table>> tables_;
  int experts_;
};

/// The mean of the experts' seconds; `shares` of the steps, empty: alike.
double mean_seconds(const std::vector<double>& seconds, const std::vector<double>& shares);

}  // namespace tessera::plan
