#pragma once
// Activation policy: what a unit's forward saves for its backward, in which dtype, and on which device.
//
//   Policy policy = policy_of("offload_int8", "plan.activations");
//   policy.graph;  policy.form;  policy.tier;                 // Graph::rebuild, DType::i8, Tier::host
//   policy == Policy::recompute;  name(policy);
#include <optional>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"

namespace tessera::plan {

/// The device that stores a buffer between uses; a buffer is copied to the GPU for each use.
enum class Tier { device, host, nvme };
std::string_view name(Tier tier);
/// The tier by name. Throws UserError (usage) naming `where` and the nearest name.
Tier tier_of(std::string_view text, std::string_view where);

/// How much of a unit's graph is kept between forward and backward (activation checkpointing).
///   keep       all of it
///   rebuild    selective recompute: all but the results of norms and residual sums, which the backward recomputes
///              bit for bit
///   recompute  only the unit's input; its forward runs again
enum class Graph { keep, rebuild, recompute };

struct Policy {
  Graph graph = Graph::keep;
  /// Lossy: the dtype that saved tensors are quantised to between forward and backward: bf16, f16, i8 in blocks of 256,
  /// or f8_e4m3 with a scale for each row. Gradients are those of the rounded values; the relative error is measured.
  /// The planner never chooses it. Empty: exact.
  std::optional<DType> form = {};
  /// device, or host for tensors that are offloaded after the forward and reloaded before the backward. The offload
  /// target, host or disk, is UnitPlan::offload_to.
  Tier tier = Tier::device;
  bool operator==(const Policy&) const = default;

  // Policies by their names in recipes and plans. Offloaded and quantised tensors come from a selective-recompute
  // graph.
  static const Policy keep, rebuild, recompute, offload;
};
inline constexpr Policy Policy::keep{};
inline constexpr Policy Policy::rebuild{Graph::rebuild};
inline constexpr Policy Policy::recompute{Graph::recompute};
inline constexpr Policy Policy::offload{Graph::rebuild, {}, Tier::host};

inline bool is_lossy(const Policy& policy) { return policy.form.has_value(); }
/// Whether the policy moves tensors off the device between forward and backward.
inline bool leaves_device(const Policy& policy) { return policy.tier != Tier::device; }

/// A policy and its name in recipes and plans.
struct NamedPolicy {
  std::string_view name;
  Policy policy;
};
/// All policies of plan.toml, `keep` first. Recipes have one more, kRecomputeOffload.
const std::vector<NamedPolicy>& named_policies();
std::string_view name(const Policy& policy);
/// Throws UserError (usage) naming `where` and the nearest name.
Policy policy_of(std::string_view text, std::string_view where);

/// plan.activations = "recompute_offload": units recompute from inputs that are offloaded to the host. A plan states it
/// as recompute with sites = { boundary = "offload" }.
inline constexpr NamedPolicy kRecomputeOffload = {"recompute_offload", {Graph::recompute, {}, Tier::host}};

}  // namespace tessera::plan
