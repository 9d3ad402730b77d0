#pragma once
// What the planner is asked for: batch, budgets, and what was chosen by hand.
//
//   PlannerInput input{.global_batch = 32, .micro_batch = 1, .budget = 24LL << 30};
//   input.strategy = Strategy::full_shard;                  // by hand: the search keeps it
#include <cstdint>
#include <optional>

#include "tessera/plan/plan.h"

namespace tessera::plan {

struct PlannerInput {
  int64_t global_batch = 1;
  int64_t micro_batch = 1;
  int64_t budget = 0;                        ///< device bytes a rank; 0: unlimited
  int64_t host_budget = 0;                   ///< host bytes a rank; 0: nothing may leave the device
  bool nvme = false;                         ///< there is a disk to use
  bool first_that_fits = false;              ///< a fair plan soon instead of the best: to compare many layouts
  std::optional<int> prefetch;               ///< set by hand
  std::optional<Update> update;              ///< set by hand: when the optimiser runs
  bool may_update_in_backward = false;       ///< nothing clips gradients, scales the loss or skips a step
  std::optional<Tier> update_on;             ///< set by hand: who computes updates; host: states and all rest there
  int update_threads = 0;                    ///< see Plan
  std::optional<int> recompute_units;        ///< set by hand: how many blocks recompute (from the first on); others
                                             ///< keep, or rebuild where that does not fit
  std::optional<Strategy> strategy;          ///< set by hand
  std::optional<PipelineSchedule> pipeline;  ///< set by hand
  std::optional<int> chunks;                 ///< set by hand: stages a rank has when interleaved
  std::optional<Policy> activations;         ///< set by hand: keep, or how blocks save less
  std::optional<Tier> parameters, gradients, states_tier;  ///< set by hand
  std::optional<Tier> offload_to;                          ///< set by hand: of activations that leave the device
  int experts = 1;                                         ///< see Plan
  Tier idle = Tier::device;                                ///< likewise
  StateFormat states = {};
  DType param_dtype = DType::f32, compute = DType::f32, reduce = DType::f32, grad = DType::f32;
};

}  // namespace tessera::plan
