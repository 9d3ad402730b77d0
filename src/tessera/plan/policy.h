#pragma once
// Activation policy: what a unit's forward saves for its backward, in which dtype, and on which device.
//
//   Policy policy = policy_of("offload_int8", "plan.activations");
//   policy.graph;  policy.form;  policy.tier;                 // Graph::rebuild, DType::i8, Tier::host
//   policy == Policy::recompute;  name(policy);
#include <optional>
#include <string>
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

// Pipeline schedules as data: which micro-batch each rank runs when and through which of its stages, and how the units
// of a model are divided into stages.
//
//   Pipeline pipeline{PipelineSchedule::one_f_one_b, 1, balanced_stages(unit_seconds, 4)};
//   for (const PipelineAct& act : pipeline_acts(pipeline.schedule, 4, pp_rank, 1, micros)) ...
//
// [Note: stages] A rank of the `pp` axis has `chunks` stages: stage s belongs to rank s % pp. Stages are contiguous
// ranges of units; the first has the stem, the last has the head and the loss. Each message between stages carries the
// output of the last unit before the stage boundary. The first message of a micro-batch to a rank also carries the
// conditioning; the accumulated gradient of the conditioning returns with the rank's last backward of that micro-batch.
//
// [Note: bubbles] Let p be the ranks, m the micro-batches, and F and B the seconds of one rank's forward and backward
// of one micro-batch. W is the weight-gradient part of B, 0 < W < B. A step takes m (F + B) plus this bubble, if ranks
// wait for nothing but other stages:
//   gpipe        (p - 1) (F + B)        holds activations of m micro-batches
//   1f1b         (p - 1) (F + B)        holds at most p
//   interleaved  (p - 1) (F + B) / v    v chunks a rank; holds p (1 + (p - 1) / (p v)); v times as many messages
//   zero_bubble  (p - 1) (F + B - 2 W)  holds about p; deferred weight gradients fill the bubbles (ZB-H1 of Qi et al.
//                                       2023) and keep their inputs and output gradients until then

enum class PipelineSchedule { gpipe, one_f_one_b, interleaved, zero_bubble };

std::string_view name(PipelineSchedule schedule);
/// By name. Throws UserError (usage) naming `where` and the nearest name.
PipelineSchedule pipeline_schedule_of(std::string_view text, std::string_view where);

/// How a plan uses the `pp` axis.
struct Pipeline {
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int chunks = 1;               ///< stages a rank has; more than one only when interleaved
  std::vector<int> first = {};  ///< first unit of each stage; empty: as even as possible
  bool operator==(const Pipeline&) const = default;
};

struct PipelineAct {
  enum class Kind {
    forward,
    backward,     ///< without weight gradients in zero_bubble
    weight_grad,  ///< zero_bubble: the weight gradients that the backward deferred
  };
  Kind kind{};
  int chunk = 0;
  int micro = 0;
  bool operator==(const PipelineAct&) const = default;
};

/// The acts of rank `rank` of `ranks`, in order. Every unit runs forwards and backwards in ascending order of
/// micro-batches, so gradients are summed in the same order under every schedule.
std::vector<PipelineAct> pipeline_acts(PipelineSchedule schedule, int ranks, int rank, int chunks, int micros);

/// Divides units into `stages` contiguous ranges of at least one unit and returns the first unit of each. Minimises the
/// cost of the most expensive stage, then the unevenness of the others. Throws UserError (usage) if there are fewer
/// units than stages.
std::vector<int> balanced_stages(const std::vector<double>& unit_cost, int stages);

}  // namespace tessera::plan
