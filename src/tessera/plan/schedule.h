#pragma once
// The plan compiled for one rank: a list of instructions with their lane and what they wait for. The same list is
// printed (schedule.jsonl), checked (rules.h), simulated (memory.h) and executed (engine/executor.h).
//
//   Schedule step = compile_train(spec, plan, rank);      // compile/compile.h
//   for (const Instruction& in : step.list) std::cout << to_json(in, step_number) << "\n";
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/plan/plan.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::plan {

enum class Op {
  gather,     ///< fill a slot with the unit's parameters (all_gather over the shard group)
  forward,    ///< run the unit; keeps its graph where the policy says so
  release,    ///< the slot may be overwritten
  loss,       ///< objective of the micro-batch and gradient of the model's output
  recompute,  ///< run the unit's forward again from its saved boundary, with a graph
  backward,   ///< gradients of boundary, conditioning and weights (into the gradient slot)
  idle,       ///< a rank without samples: zero the gradient slot, so that the collectives stay matched
  reduce,     ///< sum the gradient slot over the shard group into the gradient shard (added from the second micro-batch
              ///< on)
  reduce_outer,  ///< sum the gradient shard over the replicas (dp_replicate), once a step; in two levels each of them
                 ///< gets its piece of the sum
  norm,    ///< gradient norm, loss and control values of all ranks; of a unit: its share, while it is on the device
  update,  ///< optimiser step of the unit's shard: on the compute lane, or on the host's where it rests there
  flush,   ///< write the shards of a checkpoint
  finish,  ///< a forward-only pass hands out its result
  stash,   ///< copy to the host tier
  drop,    ///< the device memory of what was stashed or sent is free
  fetch,   ///< bring back from the host tier
  send,    ///< to a neighbour stage: the boundary in front of `unit`, or the gradient of the one behind it
  recv,    ///< its other end; memory is taken where the compute lane comes to it
  weight_grad,  ///< gradients of weights that the unit's backward left for later (zero bubble)
  compress,     ///< what a forward saved goes into fewer bits (lossy), and its own memory is free; bytes: in fewer bits
  expand,       ///< its memory is taken again and filled from them
  gather_outer,  ///< each replica's piece of the parameter shard, updated there, to the others
};
/// Messages have a lane for each direction, so that none waits behind one that goes the other way.
/// `host`: what the host's processors compute beside the device (updates).
enum class Lane { compute, gather, reduce, control, disk, h2d, d2h, send_next, recv_prev, send_prev, recv_next, host };
inline constexpr int kLaneCount = 12;

std::string_view name(Op op);
std::string_view name(Lane lane);

/// What a stash, drop or fetch moves.
enum class Part { none, activations, parameters, gradients, states, message };
std::string_view name(Part part);

/// One collective inside an instruction: bytes are those this rank sends.
struct Comm {
  std::string axis;  ///< mesh axes of the group, joined by '+': "dp_shard", "world"
  std::string kind;  ///< "all_gather", "reduce_scatter", "all_reduce", "barrier", "send", "recv", "broadcast"
  int64_t bytes = 0;
  std::string group = {};  ///< communicator with its ranks, "gather:dp_shard[0,1]"
  bool operator==(const Comm&) const = default;
  /// The same collective, whatever the communicator is called.
  bool same_traffic(const Comm& other) const {
    return axis == other.axis && kind == other.kind && bytes == other.bytes;
  }
};

struct Instruction {
  Op op{};
  Lane lane{};
  int unit = -1;         ///< index into ModelSpec::units, -1 for none
  std::string name;      ///< the unit's name, empty for none
  int micro = -1;        ///< micro-batch, -1 for none
  int64_t bytes = 0;     ///< bytes gathered, reduced, updated or written; of the gradient (backward, idle)
  int64_t frozen = 0;    ///< of the bytes gathered: of what is not trained
  std::string group;     ///< communicator of its first collective; empty for none
  int64_t slot = -1;     ///< arena offset in bytes of the unit's parameters (gather..release, update, gather_outer), or
                         ///< of what moves; of activations between host and disk their offset on the disk
  int64_t grad = -1;     ///< arena offset of the gradient slot (backward, idle, reduce), of the gradient shard (update)
  int64_t scratch = -1;  ///< arena offset of the reduction's receive buffer (reduce, and reduce_outer where there are
                         ///< pieces), of the parameter shard (gather),
                         ///< of the states (update)
  int64_t target = -1;   ///< arena offset of a gradient shard that rests on another tier or in fewer bits (reduce,
                         ///< reduce_outer, norm)
  int64_t host = -1;     ///< host arena offset (stash, fetch)
  Part part = Part::none;
  bool add = false;       ///< the gradient is added to what lies there (backward, idle, reduce)
  std::vector<int> wait;  ///< indices (into the same list) that must be done before this one starts
  std::vector<Comm> comm;
  bool operator==(const Instruction&) const = default;
};

/// The instructions of one phase on one rank. `arena` is the bytes that its slots need.
struct Schedule {
  std::string phase;  ///< "train", "update", "sample", "encode", "checkpoint"
  std::vector<Instruction> list;
  int64_t arena = 0;
  int64_t host_arena = 0;  ///< bytes of host memory for what is stashed
  int64_t disk_arena = 0;  ///< bytes of the disk for activations
  int micros = 1;          ///< micro-batches compiled in
};

/// Its collectives, if any, carry tokens of which each rank has a share: members of a group may send different bytes.
inline bool carries_tokens(Op op) {
  return op == Op::forward || op == Op::recompute || op == Op::backward || op == Op::finish;
}
/// Bytes a rank contributes to the control exchange of `norm`: kControlDoubles doubles (see engine/step_calls.h).
inline constexpr int kControlDoubles = 48;
inline constexpr int64_t kControlBytes = kControlDoubles * 8;

/// One line of schedule.jsonl, without times: {"rank","step","i","phase","op",...}. `i` counts within (rank, step).
std::string to_json(const Instruction& in, std::string_view phase, int rank, int64_t step, int i, int base);
/// The same with "t0","t1" seconds.
std::string to_json(const Instruction& in, std::string_view phase, int rank, int64_t step, int i, int base, double t0,
                    double t1);

/// FNV-1a over every field of the list; ranks compare it before step one.
uint64_t schedule_hash(const Schedule& schedule);

}  // namespace tessera::plan
