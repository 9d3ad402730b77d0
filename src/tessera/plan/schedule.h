#pragma once
// The plan compiled for one rank: a list of instructions with their lanes and dependencies. The same list is printed
// (schedule.jsonl), checked (rules/rules.h), costed (compile/memory.h), simulated (simulate/simulate.h) and executed
// (engine/engine.h).
//
//   Schedule step = compile_train(spec, plan, rank);      // compile/compile.h
//   for (const Instruction& in : step.list) std::cout << to_json(in, step_number) << "\n";
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/symbol.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/unit_spec.h"
#include "tessera/plan/waits.h"

namespace tessera::plan {

enum class Op {
  gather,     ///< fill a slot with the unit's parameters (all_gather over the shard group)
  forward,    ///< run the unit; keeps its graph if the policy says so
  release,    ///< free the slot
  loss,       ///< objective of the micro-batch and gradient of the model's output
  recompute,  ///< run the unit's forward again from its saved input, with a graph
  backward,   ///< gradients of the unit's input, of conditioning and of weights (into the gradient slot)
  idle,       ///< dummy batch: zero the gradient slot of a rank without samples, so that collectives still match
  /// reduce-scatter the gradient slot into the gradient shard, which accumulates from the second micro-batch on
  reduce,
  /// all-reduce the gradient shard over the replicas (dp_replicate), once a step; a reduce-scatter with two_level
  reduce_outer,
  norm,    ///< exchange gradient norm, loss and control values of all ranks; with a unit: that unit's share of the norm
  update,  ///< optimiser step of the unit's shard, on the compute lane or on the host lane
  flush,   ///< write the shards of a checkpoint
  finish,  ///< hand out the result of a forward-only pass
  stash,   ///< offload: copy to host memory or disk
  drop,    ///< free the device memory of what was offloaded or sent
  fetch,   ///< reload from host memory or disk
  send,    ///< to a neighbour stage: the input of `unit`, or the gradient of the output of the unit before it
  recv,    ///< the matching receive
  weight_grad,   ///< the weight gradients that the unit's backward deferred (zero bubble)
  compress,      ///< quantise what a forward saved and free the original (lossy); bytes: quantised
  expand,        ///< dequantise into newly taken memory
  gather_outer,  ///< all-gather, over the replicas, the partitions of the parameter shard that each replica updated
};
/// Messages have a lane for each direction, so that no message waits for one in the other direction.
/// `host`: work of the host's CPU cores beside the device (updates).
enum class Lane { compute, gather, reduce, control, disk, h2d, d2h, send_next, recv_prev, send_prev, recv_next, host };
inline constexpr int kLaneCount = 12;

std::string_view name(Op op);
std::string_view name(Lane lane);
std::string_view name(Codes codes);

/// The kind of buffer that a stash, drop or fetch moves.
enum class Part { none, activations, parameters, gradients, states, message };
std::string_view name(Part part);

/// One collective inside an instruction; `bytes` are those that this rank sends.
struct Comm {
  Symbol axis;  ///< mesh axes of the group, joined by '+': "dp_shard", "world"
  Symbol kind;  ///< "all_gather", "reduce_scatter", "all_reduce", "barrier", "send", "recv", "broadcast"
  int64_t bytes = 0;
  Symbol group = {};  ///< communicator with its ranks, "gather:dp_shard[0,1]"
  bool operator==(const Comm&) const = default;
  /// Whether both are the same collective, ignoring the communicator's name.
  bool same_traffic(const Comm& other) const {
    return axis == other.axis && kind == other.kind && bytes == other.bytes;
  }
};

struct Instruction {
  Op op{};
  Lane lane{};
  int unit = -1;       ///< index into ModelSpec::units, -1 for none
  Symbol name;         ///< the unit's name, empty for none
  int micro = -1;      ///< micro-batch, -1 for none
  int64_t bytes = 0;   ///< bytes gathered, reduced, updated or written; of the gradient (backward, idle)
  int64_t frozen = 0;  ///< bytes of frozen parameters among the bytes gathered
  Symbol group;        ///< communicator of its first collective; empty for none
  /// arena offset in bytes of the unit's parameters (gather..release, update, gather_outer) or of the buffer that
  /// moves; for activations between host and disk their offset on the disk
  int64_t slot = -1;
  int64_t grad = -1;  ///< arena offset of the gradient slot (backward, idle, reduce), of the gradient shard (update)
  /// arena offset of the receive buffer (reduce, and reduce_outer with two_level), of the parameter shard (gather), of
  /// the states (update)
  int64_t scratch = -1;
  /// arena offset of a gradient shard that is offloaded or stored in bf16 (reduce, reduce_outer, norm), of the memory for
  /// whole matrices (update)
  int64_t target = -1;
  int64_t host = -1;  ///< host arena offset (stash, fetch; of the memory for whole matrices, update on the host lane)
  int64_t work = 0;   ///< bytes of memory for whole matrices (update)
  int64_t flops = 0;  ///< of this rank's whole matrices (update)
  Part part = Part::none;
  Codes codes = Codes::none;  ///< that a gather brings, and that are in the slot of what uses it
  bool add = false;           ///< the gradient is added to the one already there (backward, idle, reduce)
  Waits wait;                 ///< dependencies: indices into the same list
  std::vector<Comm> comm;
  bool operator==(const Instruction&) const = default;
};

/// The instructions of one phase on one rank. `arena` is the number of bytes that its slots need.
struct Schedule {
  std::string phase;  ///< "train", "update", "sample", "encode", "checkpoint"
  std::vector<Instruction> list;
  int64_t arena = 0;
  int64_t host_arena = 0;  ///< bytes of host memory for offloaded buffers
  int64_t disk_arena = 0;  ///< bytes of disk for offloaded activations
  int micros = 1;          ///< micro-batches compiled in
};

/// What a schedule is compiled for. `memory`: for memory_curve alone, which a search asks of thousands of plans. Instructions,
/// arenas and the peak are those of the run; waits and collectives are missing, and drops are where they stand before
/// delay_drops, which raises no peak. Takes less than half the time.
/// `frozen`: a run that trains nothing.
enum class CompiledFor { run, memory, frozen };

/// [Note: memory at a place] Memory of activations is taken and freed by the compute lane, in the order of the list: that
/// keeps the peak at the predicted one. What one instruction gets, another may have freed just before, and on a device
/// the work of that one may not be done yet. The compute lane itself is in order. An instruction of another lane that
/// writes to memory taken at its place waits for the last instruction before it that touches_activations; so it starts
/// after everything that the compute lane was given up to that place. (What the compute lane has to do at the place
/// itself, loading a micro-batch or the zeros of a message, comes before the instruction too.) rules/races.h proves
/// that this is enough.
///
/// Whether the instruction is one of the compute lane that takes, uses or frees memory of activations.
bool touches_activations(const Instruction& in);
/// Whether the instruction is one of another lane and its device memory is taken where it stands in the list.
bool takes_memory(const Instruction& in);

/// The kind of the messages of an update that sends whole matrices to their ranks and back; members send different bytes.
inline constexpr const char* kAllToAll = "all_to_all";
/// Whether the instruction's collectives carry token shares, so that members of a group may send different bytes.
inline bool carries_tokens(Op op) {
  return op == Op::forward || op == Op::recompute || op == Op::backward || op == Op::finish;
}
/// Bytes each rank contributes to the control exchange of `norm`: kControlDoubles doubles (see engine/step_calls.h).
inline constexpr int kControlDoubles = 72;
inline constexpr int64_t kControlBytes = kControlDoubles * 8;

/// One line of schedule.jsonl, without times: {"rank","step","i","phase","op",...}. `i` counts within (rank, step).
std::string to_json(const Instruction& in, std::string_view phase, int rank, int64_t step, int i, int base);
/// The same with "t0","t1" seconds.
std::string to_json(const Instruction& in, std::string_view phase, int rank, int64_t step, int i, int base, double t0,
                    double t1);

/// FNV-1a over every field of the list; ranks compare it before step 1.
uint64_t schedule_hash(const Schedule& schedule);

}  // namespace tessera::plan
