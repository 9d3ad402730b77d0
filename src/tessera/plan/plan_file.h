#pragma once
// Plan files: a plan as TOML and back, and the keys, one row each, of which both are made.
//
//   write_text("plan.toml", to_toml(plan, unit_names));
//   Plan read = plan_of_toml(text, "plan.toml", unit_names);
//   for (const Row<UnitPlan>& row : unit_rows())
//     if (row.written(unit)) out << row.key << " = " << row.text(unit) << "\n";
#include <span>
#include <string>
#include <vector>

#include "tessera/plan/toml_value.h"

namespace tessera::plan {

/// `unit_names`: of all of the plan's units, in their order.
std::string to_toml(const Plan& plan, const std::vector<std::string>& unit_names);
/// Throws UserError (usage) naming `file` and key.
Plan plan_of_toml(const std::string& text, const std::string& file, const std::vector<std::string>& unit_names);

/// The keys above the tables, in the order in which they are written.
std::span<const Row<Plan>> plan_rows();
/// The keys of a [[units]] table except its name, likewise.
std::span<const Row<UnitPlan>> unit_rows();

}  // namespace tessera::plan
