#pragma once
// Which settings compose: compiles every pair of plan settings for all ranks of a small model, checks the schedules
// against the rules (rules/rules.h), and prints the results as a table.
//
//   std::fputs(composition_page().c_str(), stdout);            // docs/what-composes.md
#include <string>
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// One setting, applied to a plan of one rank.
struct Feature {
  const char* group;  ///< "axis", "strategy", "parameters": a plan has one setting of each group, except of axes
  const char* name;   ///< "sp", "full_shard", "host"
  void (*choose)(Plan&);
  void (*change)(ModelSpec&) = nullptr;  ///< the part of the setting that changes the model
};
const std::vector<Feature>& features();

/// Why a plan cannot have both; empty if it can.
std::string clash(const Feature& a, const Feature& b);

/// The table of all pairs, as the page docs/what-composes.md.
std::string composition_page();

}  // namespace tessera::plan
