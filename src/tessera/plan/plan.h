#pragma once
// The decision: mesh, micro-batches, dtypes and, for each unit, sharding, placement and activation policy. A plan is
// written by hand as TOML or found by the search (search/planner.h).
//
//   Plan plan = plan_of_toml(text, "plan.toml", unit_names);  // plan_file.h
//   plan.units[7].activations = Policy::recompute;
//
// Whether a plan stores anything on disk, and the check that plan.nvme then names a folder.
//
//   if (uses_nvme(plan)) require_nvme_folder(recipe.plan.nvme, "the plan puts buffers on nvme");
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/mesh.h"
#include "tessera/plan/policy.h"
#include "tessera/plan/states.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::plan {

/// How a unit's parameters are stored between uses. FSDP's and ZeRO's names are also read.
///   full_shard     gathered for each use (FULL_SHARD, ZeRO-3)
///   shard_grad_op  gathered from the first forward to the last backward of the step: reshard_after_forward = false
///                  (SHARD_GRAD_OP, ZeRO-2)
///   shard_states   like shard_grad_op, and the whole gradient is kept until one reduction a step (ZeRO-1)
///   no_shard       every rank holds all of it (NO_SHARD, DDP)
///   two_level      full_shard within each replica (HSDP), and each shard's optimiser states are partitioned over the
///                  replicas (dp_replicate), like ZeRO++'s hpZ. Gradients are reduced within the replica, then
///                  reduce-scattered over the replicas; each rank updates its partition of the shard and all-gathers
///                  the partitions of the other replicas.
enum class Strategy { full_shard, shard_grad_op, shard_states, no_shard, two_level };
inline constexpr int kStrategies = 5;

/// When the optimiser runs.
///   end           all updates after the last backward of the step
///   just_in_time  deferred to the next step: each unit is updated before its next gather, while other units compute.
///                 The results are the same because the norm for clipping is known by then. Deferred updates are
///                 applied before sampling, checkpointing, swapping experts and ending a stage.
///   in_backward   each unit is updated after its last reduction in the backward. Requires no clipping, no loss scale
///                 and no skipped steps, because these need the gradients of all units.
enum class Update { end, just_in_time, in_backward };

std::string_view name(Update update);
/// Throws UserError (usage) naming `where` and the nearest name.
Update update_of(std::string_view text, std::string_view where);
std::string_view name(Strategy strategy);
/// The strategy by name, FSDP's and ZeRO's names included. Throws UserError (usage) naming `where` and the nearest name.
Strategy strategy_of(std::string_view text, std::string_view where);

/// Ranks that hold the same whole unit (no_shard) and sum its gradients together.
inline const std::vector<Axis> kWholeAxes = {Axis::dp_replicate, Axis::dp_shard, Axis::cp, Axis::sp};

struct UnitPlan {
  Policy activations = Policy::keep;
  Strategy strategy = Strategy::full_shard;
  /// Exceptions by site. "boundary" is the unit's input. A recomputed unit may keep or offload the result of an
  /// attention site (output and log-sum-exp) or of its feed-forward ("ffn.2"), which is then not recomputed; a unit
  /// with a graph may keep or offload what any site saved.
  std::map<std::string, Policy> sites = {};
  /// Gradients of all micro-batches are summed locally and reduced once: less traffic, but a whole gradient for each
  /// unit.
  bool reduce_once = false;
  /// Placement of this rank's shard of the parameters, of the reduced gradients and of the optimiser states.
  Tier parameters = Tier::device, gradients = Tier::device, states = Tier::device;
  /// Offload target of activations: host or nvme.
  Tier offload_to = Tier::host;
  /// Where the unit's updates run: device, or host if parameters, gradients and states are all placed there.
  Tier update_on = Tier::device;
  bool operator==(const UnitPlan&) const = default;

  /// The policy for what `site` saved (or for its result, in a recomputed unit).
  const Policy& policy(std::string_view site) const;
  bool recomputes() const { return activations.graph == Graph::recompute; }
  bool offloads() const;    ///< any part of it
  bool compresses() const;  ///< any part of it
  bool replays() const;     ///< recomputes, but keeps the results of some sites
  /// Whether the backward recomputes norms and residual sums (Footprint::selective), as every policy but `keep` does.
  bool selective() const { return activations.graph != Graph::keep; }
  bool stays_gathered() const { return strategy == Strategy::shard_grad_op || strategy == Strategy::shard_states; }
  bool reduces_once() const { return reduce_once || strategy == Strategy::shard_states; }
};

/// Whether a unit's shards, gradients and states have the same layout and placement under both: they then differ only in
/// what happens within a step.
bool same_buffers(const UnitPlan& a, const UnitPlan& b);

inline constexpr std::string_view kBlockInput = "boundary";  ///< site name of a unit's input

struct Plan : Formats {
  Mesh mesh;
  int local_world = 1;  ///< consecutive ranks of one machine, which share frozen weights on its host: shared_weights.h
  int64_t global_batch = 1;
  int64_t micro_batch = 1;  ///< largest number of samples that a rank runs at once
  int prefetch = 1;         ///< gathers issued ahead of the unit that runs
  Update update = Update::end;
  int update_threads = 0;  ///< threads for updates on the host; 0: the rank's share of the machine's cores
  /// Samples of the global batch for each dp rank; empty: as even as possible (shares.h computes others).
  std::vector<int64_t> shares = {};
  Pipeline pipeline = {};  ///< pipeline schedule, used if the mesh has a pp axis
  /// Number of denoisers of this architecture. A step trains one; the others only keep parameters and states.
  int experts = 1;
  /// The last so many of them are never trained, and have no states: teachers of the others.
  int teachers = 0;
  /// All of them have the same frozen parameters, kept once: each has adapters and states of its own, and a pass without
  /// adapters is what their base says.
  bool shared_base = false;
  Tier idle = Tier::device;     ///< placement of an inactive expert's buffers that the unit plans place on the device
  Tier teacher = Tier::device;  ///< device or host: placement of the shards of a teacher of other sizes (teacher_plan)
  /// Experts whose passes may run side by side, 1 or 2: each of them has slots and reduced gradients of its own then.
  int together = 1;
  std::vector<UnitPlan> units;
  /// Units of experts whose steps differ from the first expert's, by expert. All experts share the first one's buffers
  /// (check_experts), so only what happens within a step differs.
  std::map<int, std::vector<UnitPlan>> of_expert = {};
  bool operator==(const Plan&) const = default;

  /// The plan of this expert's steps, as if all experts had them.
  Plan as_of(int expert) const;

  /// Micro-batches a rank runs in a step, the same on every rank (some may be dummy batches).
  int64_t accumulation() const;
  /// Ranks over which the unit's buffers are sharded; 1 if every rank holds all of them.
  int shards(int unit) const;
  /// The layout of the unit's parameters in its buffers.
  UnitLayout layout(const UnitSpec& spec, int unit) const;
  /// Which of the buffer's shards `rank` holds.
  int shard_rank(const Buffer& buffer, int rank) const;
  std::vector<Held> held(const UnitLayout& layout, int rank) const;  ///< one for each buffer
  /// The axes over which the buffer is sharded; for an unsharded buffer, the axes over which it is replicated.
  std::vector<Axis> axes(const Buffer& buffer) const;
  /// The axes whose ranks hold the same shard (or the same whole) and sum their gradients once a step.
  std::vector<Axis> outer_axes(const Buffer& buffer) const;
  bool rounds_gradients() const { return grad != DType::f32; }
  /// Bytes that this rank's reduced gradient of the unit takes in its placement.
  int64_t gradient_bytes(const UnitLayout& layout) const { return layout.grad_shard * size_of(grad); }
  /// Whether the unit's reduced gradient has no persistent memory: it is in the arena from its only reduction until the
  /// update right after it.
  bool transient_gradient(const UnitLayout& layout, int unit) const;
  /// Throws UserError (usage) for an update on the host whose buffers are not placed on the host.
  void check_updates(std::string_view where, const std::vector<std::string>& unit_names = {}) const;
  /// Throws UserError (usage) where an expert's units would need other buffers than the first expert's.
  void check_experts(std::string_view where, const std::vector<std::string>& unit_names = {}) const;
  // [Note: stages] of pipeline.h
  int stages() const { return mesh[Axis::pp] * pipeline.chunks; }
  int first_unit(int stage) const;  ///< of stages(): the number of units
  int stage_of(int unit) const;
  /// Whether the unit belongs to one of `rank`'s stages, so that the rank stores and runs it.
  bool owns(int rank, int unit) const;

  /// The placement, while an expert is inactive, of what is on `tier` while it is active.
  Tier inactive_tier(Tier tier) const { return tier == Tier::device ? idle : tier; }

  /// Bytes of an inactive expert's shards of the unit.
  int64_t inactive_bytes(const UnitLayout& layout) const {
    return shared_base ? trained_shard_bytes(layout, states.masters) : shard_bytes(layout, states.masters);
  }
  /// Why passes of two experts cannot run side by side; empty: they can.
  std::string keeps_apart() const;

  /// Samples of micro-batch `micro` of `dp_rank`: [first, first + count) of the global batch; 0 for a dummy batch.
  struct Slice {
    int64_t first = 0, count = 0;
  };
  Slice slice(int dp_rank, int64_t micro) const;

  std::string summary() const;  ///< one line: "keep 6 of 8 units, recompute 2, prefetch 1, ..."
};

/// Of a frozen network of other sizes beside those of `student`, of so many units: it runs forward alone, on the same mesh and
/// micro-batches, with full shards on Plan::teacher.
Plan teacher_plan(size_t units, const Plan& student);

struct Plan;

/// The disk folder that one rank uses.
struct DiskPlace {
  std::string folder = {};
  /// Keeps a CRC-32C of each written region in host memory and compares it when the region is read.
  bool checksum = false;
};

/// Whether the plan stores anything on disk: parameters, gradients, states, offloaded activations or inactive experts.
bool uses_nvme(const Plan& plan);

/// Throws UserError (usage) if `folder` is empty. `who` names the setting that needs it: "plan.states = \"nvme\"".
void require_nvme_folder(std::string_view folder, std::string_view who);

}  // namespace tessera::plan
