#pragma once
// What composes with what: every pair of choices a plan can have is compiled for all ranks of a small model and held
// against the rules of a schedule (rules.h), and the outcome is a table.
//
//   std::fputs(composition_page().c_str(), stdout);            // docs/what-composes.md
#include <string>
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// One choice, on top of a plan of one rank.
struct Feature {
  const char* group;  ///< "axis", "strategy", "parameters": of one group a plan has one, but of axes
  const char* name;   ///< "sp", "full_shard", "host"
  void (*choose)(Plan&);
  void (*change)(ModelSpec&) = nullptr;  ///< what is chosen of the model itself
};
const std::vector<Feature>& features();

/// Why a plan with both cannot be; empty when it can.
std::string clash(const Feature& a, const Feature& b);

/// Both, as the page docs/what-composes.md.
std::string composition_page();

}  // namespace tessera::plan
