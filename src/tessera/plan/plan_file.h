#pragma once
// Plan files: a plan as TOML, and back.
//
//   write_text("plan.toml", to_toml(plan, unit_names));
//   Plan read = plan_of_toml(text, "plan.toml", unit_names);
#include <string>
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// `unit_names`: of all of the plan's units, in their order.
std::string to_toml(const Plan& plan, const std::vector<std::string>& unit_names);
/// Throws UserError (usage) naming `file` and key.
Plan plan_of_toml(const std::string& text, const std::string& file, const std::vector<std::string>& unit_names);

}  // namespace tessera::plan
