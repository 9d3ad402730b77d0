#pragma once
// What the planner is asked (batch, budgets, the settings of the user), the plans that it has evaluated, and the sentences
// that explain its choice.
//
//   PlannerInput input;
//   input.global_batch = 32, input.budget = 24LL << 30;
//   input.strategy = Strategy::full_shard;                  // set by the user: the search keeps it
//   if (candidate.fits && candidate.seconds < best.seconds) best = candidate;
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/compile/memory.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/plan_keys.h"

namespace tessera::plan {

struct PlannerInput : PlanKeys {
  int64_t global_batch = 1;
  int64_t micro_batch = 1;
  int64_t budget = 0;                          ///< device bytes of a rank; 0: unlimited
  int64_t host_budget = 0;                     ///< host bytes of a rank; 0: nothing may be offloaded
  int local_world = 1;                         ///< see Plan
  bool nvme = false;                           ///< a disk is available
  bool first_that_fits = false;                ///< stop at the first plan that fits, to compare many layouts quickly
  bool thrifty = false;                        ///< of plans of the same time the one of least memory
  bool trades = true;                          ///< the best plan trades memory at the end of the search (mix.h)
  bool may_update_in_backward = false;         ///< no gradient clipping, loss scaling or skipped steps
  int experts = 1, teachers = 0;               ///< see Plan
  bool shared_base = false;                    ///< likewise
  Tier teacher = Tier::device;                 ///< likewise
  std::vector<std::string> expert_names = {};  ///< that `units` may begin with; empty: it is of all experts
  std::vector<double> expert_shares = {};      ///< of the steps; empty: alike
  /// A plan of this model, mesh and batch that the search begins with, as with a smaller budget: where it fits, the
  /// choice is never slower.
  std::optional<Plan> incumbent = {};
};

/// A plan that the search has evaluated, with the result.
struct Candidate {
  Plan plan;
  bool fits = false;
  int64_t peak = 0;
  int64_t host = 0;    ///< bytes on the host, of the rank with the most
  double seconds = 0;  ///< of a step, simulated
  std::string why;
};

/// [Note: the same time] Predictions are off by some percent, so plans within kSameTime of the fastest take the same time. Of
/// those that take no more of the host and of the disk than the fastest, a search that is `thrifty` prefers the one with the
/// most memory to spare on the device. It goes through the plans by their peaks and prefers none that is slower than what it
/// preferred before: a larger budget, which adds plans of higher peaks, does not make the preferred one slower.
inline constexpr double kSameTime = 0.01;

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
