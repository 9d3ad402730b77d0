#pragma once
// What a plan by hand leaves open or says for nothing: no mistakes, but seldom what was meant.
//
//   for (const std::string& note : notes_on(text, plan, names)) ...    // "no [[units]] table names blocks.8 and
//   blocks.9: ..."
#include <string>
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// Sentences: units that no table names, units that two tables name (beside one that means all, "*"), keys without
/// effect. `text` is the file that `plan` was read from.
std::vector<std::string> notes_on(const std::string& text, const Plan& plan,
                                  const std::vector<std::string>& unit_names);

}  // namespace tessera::plan
