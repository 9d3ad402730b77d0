#pragma once
// What ranks of a schedule send each other: the collectives over the buffers of a unit, and the messages between the stages
// of a pipeline.
//
//   SlotGroups groups(comm, plan, store);               // all ranks together
//   groups.gather(in, done);                            // notes in `done` what ran
//   StageMessages messages(comm, plan, rank);
//   Message m = messages.make(in, shapes, device);      // memory for what `in` receives
//   messages.exchange(in, m, done);                     // either end
#include "tessera/comm/comm.h"
#include "tessera/device/backend.h"
#include "tessera/engine/signatures.h"
#include "tessera/engine/store/updates.h"
#include "tessera/net/model.h"
#include "tessera/plan/schedule.h"

namespace tessera::engine {

/// The groups of ranks that share a unit's buffers: each collective is over one of the store's buffers.
class SlotGroups {
 public:
  using Done = std::vector<plan::Comm>;

  SlotGroups(comm::Comm& comm, const plan::Plan& plan, Store& store);

  void gather(const plan::Instruction& in, Done& done);
  void reduce(const plan::Instruction& in, Done& done);
  /// Sums a unit's gradient over the replicas: of the same shard, or of the same whole gradient.
  void reduce_outer(const plan::Instruction& in, Done& done);
  void gather_outer(const plan::Instruction& in, Done& done);
  /// The sums of an update over its tensors.
  SumOver sum_over(const plan::Instruction& in, Done& done) const;
  /// Its whole matrices; `work`: the memory that the schedule gives it.
  WholeUpdate whole_of(const plan::Instruction& in, Tensor work, Done& done) const;

  /// Lends the groups the arena for their messages (comm.h). The collectives of slots use it as a symmetric window, where
  /// groups can, and where all members send from one offset in all of `used`: plans that offload, or whose ranks have other
  /// shards, may not. All ranks open it once there is an arena, and close it before that changes.
  void open_windows(const std::vector<const plan::Schedule*>& used);
  void close_windows();
  /// Lends the gradients that stay on the device, once they are there: replicas exchange them.
  void lend_kept();

 private:
  struct OfBuffer {  // null where the buffer needs no such collective
    comm::Group *gather, *reduce, *whole, *spread;
    comm::Group *sums, *host_sums;  // of updates on the compute lane and on the host lane, which may run at once
    comm::Group *matrices, *host_matrices;  // likewise
  };
  void reduce_partition(const plan::Instruction& in, Done& done);

  Store& store_;
  const DType reduce_dtype_;
  comm::Group& outer_;
  std::vector<std::vector<OfBuffer>> of_;                 // by unit and buffer
  std::vector<std::vector<plan::MatrixParts>> matrices_;  // likewise, where the optimiser updates matrices
  std::vector<comm::Group*> of_slots_;  // each of gather and reduce once, in the order in which all ranks made them
};

struct Message {
  std::vector<Tensor> stream, cond;  ///< boundary tensors and conditioning, or their gradients
  std::vector<Tensor> tensors() const;
};

/// Boundary and conditioning forward, their gradients back. Each pair of neighbours and each direction has a communicator of
/// its own. Shapes follow from the micro-batch's tokens, which every stage knows, so the receiver allocates before a message
/// comes, and messages need no header.
class StageMessages {
 public:
  /// Makes the communicators with this rank's neighbours; all ranks together. Makes none without a pp axis.
  StageMessages(comm::Comm& comm, const plan::Plan& plan, int rank);

  bool active() const { return ranks_ > 1; }
  /// Messages lie in this memory of the device (comm.h), mostly.
  void lend(device::Block memory) const;
  /// Whether the message has conditioning, or its gradient.
  bool carries_conditioning(const plan::Instruction& in) const;
  /// Allocates the message that a `recv` fills.
  Message make(const plan::Instruction& in, const BoundaryShapes& shapes, at::Device device) const;
  /// Runs a `send` or `recv`; blocks until it is done. Throws InternalError for more bytes than the schedule declares.
  void exchange(const plan::Instruction& in, const Message& message, std::vector<plan::Comm>& done);
  /// Hands the result of a forward-only pass, which the last stage has, to all stages.
  Tensor share_result(Tensor result, const TensorShape& shape, at::Device device, std::vector<plan::Comm>& done);

 private:
  const plan::Plan plan_;  // for its stages, which are the same in every program
  const int ranks_;
  bool has_last_ = true;
  int last_rank_ = 0;  // pp_rank of the last stage
  std::map<plan::Lane, comm::Group*> pairs_;
  comm::Group* results_ = nullptr;
};

/// Whether the message goes towards the last stage.
bool goes_forward(const plan::Instruction& in);

// Gradient reductions in 16 bits: each rank rounds its gradients once, and the sum is in fp32 and in rank order, so
// that every run gives the same bits.

/// shard [n] (+)= the sum over the N members of the n elements at this member's index in their `flat` [N * n], each
/// rounded to `type` (16 bits). Tensors are fp32; `flat` is overwritten; `scratch` [N * n]. Sends half the bytes of
/// Group::reduce_scatter.
void reduce_scatter_rounded(comm::Group& group, at::ScalarType type, const at::Tensor& shard, const at::Tensor& flat,
                            const at::Tensor& scratch, bool accumulate);

/// In place: the sum over members of their tensors, each rounded to `type`. The sum is rounded to `type` too, so that
/// every member has the same bits. Allocates nothing: half of the tensor is the send buffer, half the receive buffer.
void all_reduce_rounded(comm::Group& group, at::ScalarType type, const at::Tensor& tensor);

}  // namespace tessera::engine
