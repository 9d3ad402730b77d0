#pragma once
// Messages between the stages of a pipeline: boundary and conditioning forward, their gradients back. Each pair of
// neighbours and each direction has a communicator of its own. Shapes follow from the micro-batch's tokens, which every
// stage knows, so the receiver allocates before a message comes, and messages need no header.
//
//   StageMessages messages(units, comm, plan, rank);
//   Message m = messages.make(in, shapes);              // memory for what `in` receives
//   messages.exchange(in, m, done);                      // either end
#include "tessera/comm/comm.h"
#include "tessera/device/backend.h"
#include "tessera/engine/work.h"
#include "tessera/net/model.h"
#include "tessera/plan/schedule.h"

namespace tessera::engine {

using at::Tensor;

struct Message {
  std::vector<Tensor> stream, cond;  ///< boundary tensors and conditioning, or their gradients
  std::vector<Tensor> tensors() const;
};

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

}  // namespace tessera::engine
