#pragma once
// Sentences that explain the planner's choice. Internal to the planner.
#include <string>

#include "tessera/plan/compile/memory.h"
#include "tessera/plan/search/candidate.h"
#include "tessera/plan/search/planner_input.h"

namespace tessera::plan {

/// Bytes above the budget; 0 or less if it fits or there is no limit.
int64_t over_device(const PlannerInput& input, const Candidate& candidate);
int64_t over_host(const PlannerInput& input, const Candidate& candidate);

/// "; its updates just in time make a step 3.1 s instead of 3.4 s"; empty if the formatted times are equal.
std::string describe_gain(const Candidate& moved, double before);

/// Compares the needs of the smallest plan with the budgets; `held`: its device memory at the peak.
std::string describe_shortage(const PlannerInput& input, const Candidate& smallest, const MemoryParts& held);

}  // namespace tessera::plan
