#pragma once
// What the planner is asked for: batch, budgets, and what was chosen by hand.
//
//   PlannerInput input;
//   input.global_batch = 32, input.budget = 24LL << 30;
//   input.strategy = Strategy::full_shard;                  // by hand: the search keeps it
#include <cstdint>

#include "tessera/plan/plan_keys.h"

namespace tessera::plan {

struct PlannerInput : PlanKeys {
  int64_t global_batch = 1;
  int64_t micro_batch = 1;
  int64_t budget = 0;                   ///< device bytes a rank; 0: unlimited
  int64_t host_budget = 0;              ///< host bytes a rank; 0: nothing may leave the device
  bool nvme = false;                    ///< there is a disk to use
  bool first_that_fits = false;         ///< a fair plan soon instead of the best: to compare many layouts
  bool may_update_in_backward = false;  ///< nothing clips gradients, scales the loss or skips a step
  int experts = 1;                      ///< see Plan
};

}  // namespace tessera::plan
