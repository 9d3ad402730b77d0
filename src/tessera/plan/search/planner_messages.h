#pragma once
// Sentences that explain the planner's choice. Internal to the planner.
#include <string>
#include <vector>

#include "tessera/plan/compile/memory.h"
#include "tessera/plan/search/candidate.h"
#include "tessera/plan/search/planner_input.h"

namespace tessera::plan {

/// Bytes above the budget; 0 or less if it fits or there is no limit.
int64_t over_device(const PlannerInput& input, const Candidate& candidate);
int64_t over_host(const PlannerInput& input, const Candidate& candidate);

/// "; its updates just in time make a step 3.1 s instead of 3.4 s"; empty if the formatted times are equal.
std::string describe_gain(const Candidate& moved, double before);

/// Whether the budgets are too small for any plan, as the plans that a search tried show. A search tries what takes
/// least of the device and what takes least of device and host together, so no plan takes less than the least of these.
struct Shortage {
  bool infeasible = false;  ///< false: a plan may exist that the search did not find
  int64_t device = 0;       ///< the least that any takes on the device
  int64_t both = 0;         ///< the least that any takes on device and host together
};
Shortage shortage_of(const PlannerInput& input, const std::vector<Candidate>& tried);
/// "infeasible: every plan with these settings needs at least 61 GiB of device memory a rank; " or "not found: ...; ".
std::string describe(const Shortage& shortage, const PlannerInput& input);

/// Compares the needs of the smallest plan with the budgets; `held`: its device memory at the peak.
std::string describe_shortage(const PlannerInput& input, const Candidate& smallest, const MemoryParts& held);

}  // namespace tessera::plan
