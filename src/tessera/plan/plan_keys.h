#pragma once
// What a user may say of a plan: the fields that a recipe's [plan] and the planner's input share.
//
//   PlanKeys keys;  keys.strategy = Strategy::full_shard;          // by hand: the search keeps it
//   keys.prefetch.has_value();                                    // false: the search chooses
#include <optional>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// What the search chooses unless it is set by hand.
struct Choices {
  std::optional<int> prefetch;
  std::optional<Update> update;
  std::optional<Tier> update_on;       ///< host: parameters, gradients and states all rest there
  std::optional<int> recompute_units;  ///< blocks that recompute, from the first on; others keep, or rebuild where that
                                       ///< does not fit
  int recompute_every = 0;             ///< one block in so many recomputes; 0: as recompute_units says
  std::optional<Strategy> strategy;
  std::optional<bool> reduce_once;    ///< gradients are reduced once a step, not after each micro-batch
  std::optional<Policy> activations;  ///< keep, or how blocks save less
  std::optional<Tier> parameters, gradients, states_tier;
  std::optional<Tier> offload_to;  ///< of activations that leave the device
  bool operator==(const Choices&) const = default;
};

struct PlanKeys : Choices, Formats {
  std::optional<PipelineSchedule> pipeline;
  std::optional<int> chunks;  ///< stages a rank has when interleaved
  std::optional<Tier> idle;   ///< of an expert that has no turn
  int update_threads = 0;     ///< see Plan
};

}  // namespace tessera::plan
