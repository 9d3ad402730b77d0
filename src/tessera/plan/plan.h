#pragma once
// The decision, small and readable: mesh, micro-batches, dtypes and, for each unit, what is done with its
// parameters and activations. Written by hand as TOML or found by search (planner.h).
//
//   Plan plan = Plan::from_toml(text, "plan.toml");
//   plan.units[7].activations = Policy::recompute;
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/mesh.h"

namespace tessera::plan {

/// What happens to what a unit's forward saves for its backward.
enum class Policy { keep, recompute };

/// How a unit's parameters lie between uses. FSDP's and ZeRO's names are accepted when read.
///   full_shard     gathered for each use (FULL_SHARD, ZeRO-3)
///   shard_grad_op  stays gathered from its first forward to its last backward of the step (SHARD_GRAD_OP, ZeRO-2)
enum class Strategy { full_shard, shard_grad_op };

std::string_view name(Policy policy);
std::string_view name(Strategy strategy);
/// The values by name, FSDP's and ZeRO's names included. Throw UserError (usage) naming `where` and the nearest name.
Policy policy_of(std::string_view text, std::string_view where);
Strategy strategy_of(std::string_view text, std::string_view where);

struct UnitPlan {
  Policy activations = Policy::keep;
  Strategy strategy = Strategy::full_shard;
  bool operator==(const UnitPlan&) const = default;
};

struct Plan {
  Mesh mesh;
  int64_t global_batch = 1;
  int64_t micro_batch = 1;  ///< samples a rank runs at once, at most
  int prefetch = 1;         ///< gathers issued ahead of the unit that runs
  std::vector<UnitPlan> units;
  bool operator==(const Plan&) const = default;

  /// Micro-batches a rank runs a step, the same on every rank (some may be idle).
  int64_t accumulation() const;
  /// Samples of micro-batch `micro` of `dp_rank`: [first, first + count) of the global batch; count may be 0 (idle).
  struct Slice {
    int64_t first = 0, count = 0;
  };
  Slice slice(int dp_rank, int64_t micro) const;

  std::string to_toml(const std::vector<std::string>& unit_names) const;
  /// Throws UserError (usage) naming file and key.
  static Plan from_toml(const std::string& text, const std::string& file, const std::vector<std::string>& unit_names);
  std::string summary() const;  ///< one line: "keep 6 of 8 units, recompute 2, prefetch 1, ..."
};

}  // namespace tessera::plan
