#pragma once
// What the planner says of its choice. Internal to the planner.
#include <string>

#include "tessera/plan/compile/memory.h"
#include "tessera/plan/search/candidate.h"
#include "tessera/plan/search/planner_input.h"

namespace tessera::plan {

/// Bytes above the budget; not over 0 where it fits or nothing limits it.
int64_t over_device(const PlannerInput& input, const Candidate& candidate);
int64_t over_host(const PlannerInput& input, const Candidate& candidate);

/// "; its updates just in time make a step 3.1 s instead of 3.4 s"; empty where that cannot be told apart.
std::string gained(const Candidate& moved, double before);

/// What the smallest plan needs, of which `held` is what the device holds at its peak, and what there is.
std::string missing(const PlannerInput& input, const Candidate& smallest, const MemoryParts& held);

}  // namespace tessera::plan
