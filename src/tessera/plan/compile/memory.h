#pragma once
// Bytes that a unit's forward saves for its backward, by what the plan does with them, and the sites that save them.
//
//   check_sites(spec, plan);
//   offloaded_bytes(spec, plan, 3);          // of one micro-batch
//   compressed_bytes(spec, plan, 3).whole;   // of one micro-batch, before quantisation
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/schedule.h"

namespace tessera::plan {

/// Throws UserError (usage) if a unit's plan names a site that the unit does not have, with the nearest name.
void check_sites(const ModelSpec& model, const Plan& plan);
/// Bytes of a unit's quantised activations in one micro-batch, between its forward and its backward.
struct Compressed {
  int64_t whole = 0;                ///< before quantisation; this memory is freed
  int64_t kept = 0, offloaded = 0;  ///< quantised bytes that stay on the device, and those offloaded
  int64_t bytes() const { return kept + offloaded; }
};
Compressed compressed_bytes(const ModelSpec& model, const Plan& plan, int unit);
/// Bytes that one micro-batch of the unit offloads between its forward and its backward.
int64_t offloaded_bytes(const ModelSpec& model, const Plan& plan, int unit);
/// The sites whose results a recomputed unit keeps or offloads, named as in Footprint::replays; empty for none.
std::string replayed_sites(const UnitSpec& unit, const UnitPlan& plan);

// Collectives inside units, for ranks that share tokens. The compiler declares them in the instruction that runs them;
// the engine compares what it ran with the same lists.
//
//   for (const Traffic& t : traffic_of(spec.units[in.unit], plan.units[in.unit], in.op)) t.purpose, t.axes;

/// Collectives inside a unit's forward, recompute or backward, in their order.
const std::vector<Traffic>& traffic_of(const UnitSpec& unit, const UnitPlan& plan, Op op);
/// The collective of a forward-only pass's `finish` that broadcasts the last pipeline stage's result.
Traffic result_traffic(int64_t row_bytes);
/// The collective of a forward-only pass's `finish`, which joins the tokens of all ranks.
Traffic prediction_traffic(int64_t row_bytes, const Mesh& mesh);

/// The first unit that has a backward; those before it run forward alone, and keep nothing: no gradient is wanted of their
/// parameters or inputs. With several stages a rank all units have one.
int backward_from(const ModelSpec& model, const Plan& plan);
/// The same where the first unit with a trained parameter is known: `first`, which is `unit`.
int backward_from(int first, const UnitSpec& unit, const Plan& plan);

// The memory curve of a schedule: the live bytes at each instruction. Pure arithmetic over measured footprints.
//
//   MemoryCurve curve = memory_curve(spec, plan, schedule, rank);
//   curve.peak; curve.at;                    // bytes, and the instruction with the highest live bytes

struct MemoryParts {
  int64_t parameters = 0, gradients = 0, states = 0, slots = 0, activations = 0, temporaries = 0;
  int64_t total() const { return parameters + gradients + states + slots + activations + temporaries; }
};

struct MemoryCurve {
  int64_t peak = 0;
  int at = -1;                ///< index of the instruction at the peak
  std::string at_name;        ///< "backward blocks.3"
  MemoryParts by_part;        ///< at the peak
  int64_t persistent = 0;     ///< shards of parameters, gradients and states on the device
  MemoryParts host;           ///< on the host: shards; as slots, offloaded buffers and staging for the disk
  int64_t spared = 0;         ///< host bytes less than with frozen weights of its own, which ranks of a machine share
  MemoryParts nvme;           ///< on disk: shards and offloaded activations
  std::vector<int64_t> live;  ///< peak bytes during each instruction
};

/// Memory of a GPU by way of which a swap of experts moves the bytes of buffers, a piece at a time.
inline constexpr int64_t kSwapPiece = int64_t{16} << 20;
/// Bytes of it that a rank has through the run; 0: experts keep their tiers. They are among the slots.
inline int64_t swap_piece(const ModelSpec& model, const Plan& plan) {
  return plan.experts > 1 && (plan.idle != Tier::device || plan.shared_base) ? model.swap_piece : 0;
}

/// Bytes of an arena in which each of the experts side by side has `bytes` of slots, as far from each other as kernels like it.
inline int64_t arena_of_all(const Plan& plan, int64_t bytes) {
  constexpr int64_t kApart = 512;
  return plan.together > 1 ? plan.together * round_up(bytes, kApart) : bytes;
}

/// `arena`, `host_arena`: bytes of slots. Pass the largest over all schedules of the run, because arenas are allocated
/// once (0: this schedule's).
MemoryCurve memory_curve(const ModelSpec& model, const Plan& plan, const Schedule& schedule, int rank,
                         int64_t arena = 0, int64_t host_arena = 0);

// Live bytes of activations on one rank, instruction by instruction: a model of what engine/interpreter.cpp allocates and
// frees. Internal to memory.cpp.
//
//   ActivationWalk walk(model, plan, rank, /*train=*/true);
//   for (const Instruction& in : schedule.list) highest = std::max(highest, walk.run(in));

class ActivationWalk {
 public:
  /// Keeps references to `model` and `plan`.
  ActivationWalk(const ModelSpec& model, const Plan& plan, int rank, bool train);

  /// Runs one instruction and returns the highest live bytes during it.
  int64_t run(const Instruction& in);
  int64_t live() const { return live_; }

 private:
  /// Costs of one unit under its plan.
  struct Facts {
    int64_t forward_peak;    // peak of the forward
    int64_t kept;            // held from forward to backward, without output and conditioning
    int64_t recompute_peak;  // peak of the recompute
    int64_t rebuilt;         // further bytes of a recomputed graph
    int64_t saved_out;       // bytes of the output that the graph of the forward holds as well
    const GraphCost* graph;  // costs of the backward's graph
  };
  /// The model on micro-batches of one number of samples, with the costs of its units.
  struct Costs {
    const ModelSpec& model;
    std::vector<Facts> units;
  };
  /// A micro-batch in flight.
  struct Micro {
    int64_t inputs = 0;                  // batch and tables
    int64_t conditioning = 0;            // computed by the stem or received
    std::vector<int64_t> cond_grad;      // for each conditioning tensor: bytes of its gradient, 0 before the first
    std::vector<int64_t> received = {};  // the same for a received gradient that is not added yet
    int received_by = -1;                // the unit that adds it; messages may arrive before other stages' backwards
    std::map<int, int64_t> held = {};    // by unit: what its graph holds of an output that others let go of; 0: no more
  };

  Facts facts(const ModelSpec& model, int unit) const;
  const Costs& costs(int micro) const;
  Micro& load(int micro);
  int64_t forward(int unit, int micro);
  int64_t backward(int unit, int micro);
  int64_t weight_grad(int unit, int micro);
  void receive(const Instruction& in);
  int64_t send(const Instruction& in);
  bool carries_conditioning(const Instruction& in) const;
  int64_t let_go(int unit, int micro);
  void end(int micro);
  bool is_last(int unit) const { return unit + 1 == static_cast<int>(model_.units.size()); }

  const ModelSpec& model_;
  const Plan& plan_;
  const int dp_rank_;
  const bool train_, has_first_, has_last_, defers_;
  const int backward_from_;   // the first unit that has a backward
  const int first_unit_;      // of those in the rank's first stage, which ends a micro-batch
  const bool only_forward_;   // no unit of the rank has one: the message to the next stage ends a micro-batch
  std::vector<Costs> costs_;  // of ModelSpec::smaller, then of the largest micro-batch
  std::map<int, Micro> micros_;
  std::pair<int, int> sent_ = {-1, -1};  // unit and micro-batch of the last output sent on, until it is dropped
  int64_t live_ = 0;
};

}  // namespace tessera::plan
