#pragma once
// Warnings about a hand-written plan: units it leaves out or names twice, and keys without effect.
//
//   for (const std::string& warning : plan_warnings(text, plan, names)) ...
//   // "no [[units]] table names blocks.8 and blocks.9: ..."
#include <string>
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// One sentence for each: units that no table names, units that two tables name (besides the "*" table), and keys
/// without effect. `text` is the file that `plan` was read from.
std::vector<std::string> plan_warnings(const std::string& text, const Plan& plan,
                                       const std::vector<std::string>& unit_names);

}  // namespace tessera::plan
