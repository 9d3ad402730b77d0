#pragma once
// The decision, small and readable: mesh, micro-batches, dtypes and, for each unit, what is done with its
// parameters and activations. Written by hand as TOML or found by search (planner.h).
//
//   Plan plan = Plan::from_toml(text, "plan.toml");
//   plan.units[7].activations = Policy::recompute;
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/mesh.h"
#include "tessera/plan/pipeline.h"
#include "tessera/plan/policy.h"
#include "tessera/plan/states.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::plan {

/// How a unit's parameters lie between uses. FSDP's and ZeRO's names are accepted when read.
///   full_shard     gathered for each use (FULL_SHARD, ZeRO-3)
///   shard_grad_op  stays gathered from its first forward to its last backward of the step (SHARD_GRAD_OP, ZeRO-2)
///   shard_states   that, and the whole gradient stays until it is reduced once a step (ZeRO-1)
///   no_shard       every rank holds all of it (NO_SHARD, DDP)
///   two_level      full_shard within a copy of the model, and the states of a shard are split over the copies
///                  (dp_replicate): hybrid sharding with sharded states, ZeRO++'s hpZ. Gradients are summed within the
///                  copy, then each rank gets the sum over the copies of its piece, updates that, and has the others'
///                  from them.
enum class Strategy { full_shard, shard_grad_op, shard_states, no_shard, two_level };
inline constexpr int kStrategies = 5;

/// When the optimiser runs.
///   end           all updates behind the last backward of the step
///   just_in_time  each ahead of its unit's next gather, in the step after: its states stream while others compute. The
///                 same numbers, because the norm that clips is known by then. What is pending runs before a sample, a
///                 checkpoint, another expert's turn and the end of a part of the run.
///   in_backward   each behind its unit's last reduction: gradients do not wait for the end of the step. Only where
///                 nothing needs to be known of all of them first: no clipping, no loss scale, no skipped steps.
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
  /// Exceptions by site. "boundary" is the unit's input. A recomputed unit may keep or offload what an attention site
  /// made (output and log-sum-exp) or its feed-forward ("ffn.2"), which is then not computed again; a unit with a graph
  /// may keep or offload what any site saved.
  std::map<std::string, Policy> sites = {};
  /// Gradients of all micro-batches are summed before they are reduced: less traffic, a whole gradient a unit.
  bool reduce_once = false;
  /// This rank's shard of the parameters, of the reduced gradients, and the optimiser's states.
  Tier parameters = Tier::device, gradients = Tier::device, states = Tier::device;
  /// Where activations rest that leave the device: host or nvme.
  Tier offload_to = Tier::host;
  /// Who computes its updates: the device, or the host's processors where all three rest (device and host alone).
  Tier update_on = Tier::device;
  bool operator==(const UnitPlan&) const = default;

  /// What is done with what `site` saved (or made, in a recomputed unit).
  const Policy& policy(std::string_view site) const;
  bool recomputes() const { return activations.graph == Graph::recompute; }
  bool offloads() const;    ///< anything
  bool compresses() const;  ///< anything
  bool replays() const;     ///< recomputes, but for some sites
  /// Whether the unit's graph is the lean one (GraphCost of Footprint::lean).
  bool lean() const { return activations.graph != Graph::keep; }
  bool stays_gathered() const { return strategy == Strategy::shard_grad_op || strategy == Strategy::shard_states; }
  bool reduces_once() const { return reduce_once || strategy == Strategy::shard_states; }
};

inline constexpr std::string_view kBoundary = "boundary";  ///< the site of a unit's input

struct Plan : Formats {
  Mesh mesh;
  int64_t global_batch = 1;
  int64_t micro_batch = 1;  ///< samples a rank runs at once, at most
  int prefetch = 1;         ///< gathers issued ahead of the unit that runs
  Update update = Update::end;
  int update_threads = 0;  ///< of a rank's updates on the host; 0: its share of the machine's cores
  /// Samples of the global batch for each dp rank; empty: as even as they go (shares.h makes others).
  std::vector<int64_t> shares = {};
  Pipeline pipeline = {};  ///< how stages take turns, where the mesh has a pp axis
  /// Denoisers of this form that take turns, one a step: the others keep parameters and states and do nothing.
  int experts = 1;
  Tier idle = Tier::device;  ///< where those rest what their units' plans leave on the device
  std::vector<UnitPlan> units;
  bool operator==(const Plan&) const = default;

  /// Micro-batches a rank runs a step, the same on every rank (some may be idle).
  int64_t accumulation() const;
  /// Ranks of the shard group over which a unit's buffers are split: 1 where every rank holds them.
  int shards(int unit) const;
  /// Where the unit's parameters lie.
  UnitLayout layout(const UnitSpec& spec, int unit) const;
  /// Which of the buffer's shards `rank` holds.
  int shard_rank(const Buffer& buffer, int rank) const;
  std::vector<Held> held(const UnitLayout& layout, int rank) const;  ///< of each buffer
  /// The axes whose ranks share the buffer's shards; for one that is not split, those that hold it all alike.
  std::vector<Axis> axes(const Buffer& buffer) const;
  /// The axes whose ranks hold the same shard (or the same whole) and sum their gradients once a step.
  std::vector<Axis> outer_axes(const Buffer& buffer) const;
  bool rounds_gradients() const { return grad != DType::f32; }
  /// Bytes of this rank's reduced gradient of the unit where it rests.
  int64_t gradient_bytes(const UnitLayout& layout) const { return layout.grad_shard * size_of(grad); }
  /// Whether the unit's reduced gradient has no place of its own: it lies in the arena from its one reduction until the
  /// update right behind it.
  bool transient_gradient(const UnitLayout& layout, int unit) const;
  /// Throws UserError (usage) where an update on the host would not find its buffers there.
  void check_updates(std::string_view where, const std::vector<std::string>& unit_names = {}) const;
  // [Note: stages] of pipeline.h
  int stages() const { return mesh[Axis::pp] * pipeline.chunks; }
  int first_unit(int stage) const;  ///< of stages(): the number of units
  int stage_of(int unit) const;
  /// Whether the unit is of one of `rank`'s stages: it alone has its buffers and runs it.
  bool owns(int rank, int unit) const;

  /// Where an expert that has no turn rests what lies on `tier` in its turn.
  Tier resting(Tier tier) const { return tier == Tier::device ? idle : tier; }

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
