#pragma once
// The plan settings that a user may set: fields that a recipe's [plan] table and the planner's input share.
//
//   PlanKeys keys;  keys.strategy = Strategy::full_shard;          // set by the user: the search keeps it
//   keys.prefetch.has_value();                                    // false: the search chooses
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// What the user set for some units: a [[plan.units]] table of a recipe (unit_keys.h reads and applies it).
struct UnitKeys {
  std::string match;  ///< "blocks.0-3", "blocks.*"; of one expert "high_noise.blocks.*"
  /// As in plan.toml: "strategy", "activations", "sites.self_attn" ...
  std::vector<std::pair<std::string, std::string>> keys;
  bool operator==(const UnitKeys&) const = default;
};

/// Settings that the search chooses if the user leaves them unset.
struct Choices {
  std::optional<int> prefetch;
  std::optional<Update> update;
  std::optional<Tier> update_on;  ///< host: parameters, gradients and states are then all placed there
  /// number of blocks that recompute, from the first on; the others keep, or rebuild if memory requires it
  std::optional<int> recompute_units;
  int recompute_every = 0;  ///< every n-th block recomputes; 0: recompute_units decides
  std::optional<Strategy> strategy;
  std::optional<bool> reduce_once;    ///< gradients are reduced once a step, not after each micro-batch
  std::optional<Policy> activations;  ///< keep, or how blocks save memory
  std::optional<Tier> parameters, gradients, states_tier;
  std::optional<Tier> offload_to;  ///< offload target of activations
  std::vector<UnitKeys> units;     ///< of some units: a later one overrides, all override the keys above
  bool operator==(const Choices&) const = default;
};

struct PlanKeys : Choices, Formats {
  std::optional<PipelineSchedule> pipeline;
  std::optional<int> chunks;   ///< stages on each rank when interleaved
  std::optional<Tier> idle;    ///< placement of inactive experts
  int update_threads = 0;      ///< see Plan
  std::optional<bool> gather;  ///< weights of products in 8 bits as codes (Formats::gather_fp8)
  std::optional<bool> graphs;  ///< training steps are graphs of the device (graphs.h)
};

}  // namespace tessera::plan
