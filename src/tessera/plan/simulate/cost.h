#pragma once
// The cost model: seconds of each instruction, were it alone on the machine.
//
//   CostModel cost(spec, plan, {.profile = find_profile("h200"), .work = work, .dtype = "bf16"});
//   for (const Phase& phase : cost.phases(instruction, rank)) phase.seconds;
//
// [Note: cost model]
//   product    (FLOPs + half) / top of the profile's dtype; a backward has two for each product of the forward
//   attention  forward FLOPs at one rate, 2.5 times as many at the rate of the backward
//   others     bytes read and written at the streaming rate; a backward streams twice as much, and that of a lean graph
//              what it makes again (GraphCost::rebuilt)
//   update     at the plain bandwidth: parameter, gradient and both moments read, all but the gradient written: 28
//              bytes an fp32 element; on the host at the rank's share of host memory's, or what its threads stream,
//              where that is less
//   collective a ring: bytes sent / bandwidth + (n - 1) hops. A group within a node has the device's link; one that
//              spans nodes has the node's NIC, shared by the groups that leave the node together, where that is less
//   message    bytes / bandwidth of the link between the two ranks + a hop
//   copy       bytes / host link, or its share of host memory's bandwidth; the disk is shared by the node's ranks
#include "tessera/plan/simulate/profile.h"
#include "tessera/plan/simulate/work.h"

namespace tessera::plan {

/// What a plan runs on, and how.
struct Machine {
  Profile profile = find_profile("cpu");
  WorkTable work = {};         ///< empty: Footprint's FLOPs at the rate of products
  std::string dtype = "fp32";  ///< of products and attention
  double wire = 1;             ///< bytes that cross a link for each byte in the schedule (0.5: bf16)
  double update_bytes = 28;    ///< bytes an optimiser step moves for each element
};

/// What an instruction occupies while it runs; phases of one resource share it evenly.
enum class Resource { compute, link, h2d, d2h, disk, host };
inline constexpr int kResources = 6;
/// What a second of it counts as.
enum class Share { compute, comm, copy, optimizer, bubble };
inline constexpr int kShares = 5;

struct Phase {
  Resource resource = Resource::compute;
  Share share = Share::compute;
  double seconds = 0;
  bool meets = false;  ///< a collective: starts when all ranks have come, ends together
};

class CostModel {
 public:
  /// Keeps references to `model` and `plan`. Throws UserError (usage) when the profile has no rate of the dtype.
  CostModel(const ModelSpec& model, const Plan& plan, Machine machine);

  /// What `in` does, one after the other; empty for bookkeeping that takes no time.
  std::vector<Phase> phases(const Instruction& in, int rank) const;
  /// Seconds of a message to or from the neighbour at the other end of `lane`.
  double message_seconds(int64_t bytes, Lane lane, int rank) const;
  /// Seconds of one collective of `rank`'s group over `axes` ("dp_shard", "dp_shard+cp").
  double collective_seconds(const Comm& comm, int rank) const;
  double forward_seconds(int unit, bool replay) const;
  double backward_seconds(int unit) const;
  /// What a backward takes more where the unit's plan has it make norms and sums again.
  double rebuild_seconds(int unit) const;
  /// The part of a backward that is gradients of weights.
  double weight_grad_seconds(int unit) const;

  const Machine& machine() const { return machine_; }
  const Plan& plan() const { return plan_; }

 private:
  double copy_seconds(double bytes) const;
  /// Of an update that moves so many bytes, and what it occupies.
  double update_seconds(double bytes, bool on_host) const;
  /// Of the self-attention in a forward, recompute or backward: a ring's blocks travel behind it.
  double attention_seconds(const Instruction& in) const;
  const ModelSpec& model_;
  const Plan& plan_;
  const Machine machine_;
  Rate product_, attention_, attention_backward_;
};

}  // namespace tessera::plan
