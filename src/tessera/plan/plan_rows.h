#pragma once
// The keys of a plan file, one row each. Reading, writing and checking plan files use these rows.
//
//   for (const Row<UnitPlan>& row : unit_rows())
//     if (row.written(unit)) out << row.key << " = " << row.text(unit) << "\n";
#include <span>

#include "tessera/plan/toml_value.h"

namespace tessera::plan {

/// The keys above the tables, in the order in which they are written.
std::span<const Row<Plan>> plan_rows();
/// The keys of a [[units]] table except its name, likewise.
std::span<const Row<UnitPlan>> unit_rows();

}  // namespace tessera::plan
