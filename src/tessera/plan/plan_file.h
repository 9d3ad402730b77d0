#pragma once
// A plan's name in metrics, checkpoints and predictions: what was priced and what ran have the same, or are not the same.
//
//   plan_hash(planned.plan());                           // "3f2ab84c09d1e775"
//
// And what is said of a hand-written one: units that it leaves out or names twice, and keys without effect.
//
//   for (const std::string& warning : plan_warnings(text, plan, names)) ...
//   // "no [[units]] table names blocks.8 and blocks.9: ..."
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/plan.h"
#include "tessera/plan/schedule.h"

namespace tessera::plan {

/// 16 hex digits of the SHA-256 of the plan's text (Plan::to_toml) with units by number. Plans of the same hash make the
/// same schedules of the same model.
std::string plan_hash(const Plan& plan);

/// What a schedule's instructions are. A step of 14B in 32 micro-batches takes milliseconds.
struct InstructionsHash {
  /// What each does to which unit and micro-batch, on which lane, with how many bytes. Ranks with the same stages and
  /// samples have the same: it leaves out optimiser states, of which they hold different parts, and bytes of token shares.
  uint64_t work = 0;
  uint64_t exact = 0;  ///< all of them, with the places in memory that they use and what they wait for; of one rank
  bool operator==(const InstructionsHash&) const = default;
};
InstructionsHash instructions_hash(const Schedule& schedule);

// Plan files: a plan as TOML, and back.
//
//   write_text("plan.toml", to_toml(plan, unit_names));
//   Plan read = plan_of_toml(text, "plan.toml", unit_names);

/// `unit_names`: of all of the plan's units, in their order.
std::string to_toml(const Plan& plan, const std::vector<std::string>& unit_names);
/// Throws UserError (usage) naming `file` and key.
Plan plan_of_toml(const std::string& text, const std::string& file, const std::vector<std::string>& unit_names);

/// One sentence for each: units that no table names, units that two tables name (besides the "*" table), and keys
/// without effect. `text` is the file that `plan` was read from.
std::vector<std::string> plan_warnings(const std::string& text, const Plan& plan,
                                       const std::vector<std::string>& unit_names);

}  // namespace tessera::plan
