#pragma once
// What happens to what a unit's forward saves for its backward: which graph stays, in which form, where.
//
//   Policy policy = policy_of("offload_int8", "plan.activations");
//   policy.graph;  policy.form;  policy.tier;                 // Graph::rebuild, DType::i8, Tier::host
//   policy == Policy::recompute;  name(policy);
#include <optional>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"

namespace tessera::plan {

/// Where a buffer rests when nothing uses it. What is not on the device is brought there for its uses.
enum class Tier { device, host, nvme };
std::string_view name(Tier tier);
/// The tier by name. Throws UserError (usage) naming `where` and the nearest name.
Tier tier_of(std::string_view text, std::string_view where);

/// What stays of a unit's graph between forward and backward (activation checkpointing).
///   keep       all of it
///   rebuild    all but the results of norms and sums: the backward makes them again, bit for bit
///   recompute  only the unit's input, and its forward runs again
enum class Graph { keep, rebuild, recompute };

struct Policy {
  Graph graph = Graph::keep;
  /// The dtype it is rounded to from behind the forward until ahead of the backward: bf16, f16, i8 in blocks of 256, or
  /// f8_e4m3 with a scale for each row. Lossy: the gradient is that of rounded values. The planner never chooses it, and
  /// the relative error is measured. None: exact.
  std::optional<DType> form = {};
  /// Device, or host for what leaves the device behind the forward and comes back ahead of the backward; where it then
  /// rests, host or disk, is UnitPlan::offload_to.
  Tier tier = Tier::device;
  bool operator==(const Policy&) const = default;

  // what recipes and plans call so; what is sent away or rounded is a graph without results of norms and sums
  static const Policy keep, rebuild, recompute, offload;
};
inline constexpr Policy Policy::keep{};
inline constexpr Policy Policy::rebuild{Graph::rebuild};
inline constexpr Policy Policy::recompute{Graph::recompute};
inline constexpr Policy Policy::offload{Graph::rebuild, {}, Tier::host};

inline bool is_lossy(const Policy& policy) { return policy.form.has_value(); }
/// Whether what it is applied to is off the device between forward and backward.
inline bool leaves_device(const Policy& policy) { return policy.tier != Tier::device; }

/// A policy by the word that recipes and plans write.
struct PolicyWord {
  std::string_view word;
  Policy policy;
};
/// All words of plan.toml, `keep` first. Recipes have one more, kRecomputeOffload.
const std::vector<PolicyWord>& policy_words();
std::string_view name(const Policy& policy);
/// Throws UserError (usage) naming `where` and the nearest word.
Policy policy_of(std::string_view text, std::string_view where);

/// plan.activations = "recompute_offload": units recompute from inputs that wait on the host. A plan writes it as
/// recompute with sites = { boundary = "offload" }.
inline constexpr PolicyWord kRecomputeOffload = {"recompute_offload", {Graph::recompute, {}, Tier::host}};

}  // namespace tessera::plan
