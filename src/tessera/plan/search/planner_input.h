#pragma once
// Input of the planner: batch, budgets, and the settings of the user.
//
//   PlannerInput input;
//   input.global_batch = 32, input.budget = 24LL << 30;
//   input.strategy = Strategy::full_shard;                  // set by the user: the search keeps it
#include <cstdint>

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
  std::vector<std::string> expert_names = {};  ///< that `units` may begin with; empty: it is of all experts
  std::vector<double> expert_shares = {};      ///< of the steps; empty: alike
  /// A plan of this model, mesh and batch that the search begins with, as with a smaller budget: where it fits, the
  /// choice is never slower.
  std::optional<Plan> incumbent = {};
};

}  // namespace tessera::plan
