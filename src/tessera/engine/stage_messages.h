#pragma once
// What passes between the stages of a pipeline: boundary and conditioning forward, their gradients back, each pair of
// neighbours and direction over a communicator of its own. Shapes follow from the micro-batch's tokens, which every
// stage knows, so that memory is there before a message comes and no message says what it is.
//
//   StageMessages messages(units, comm, plan, rank);
//   Message m = messages.make(in, shapes);              // memory for what `in` receives
//   messages.exchange(in, m, done);                      // either end
#include "tessera/comm/comm.h"
#include "tessera/engine/work.h"
#include "tessera/net/model.h"
#include "tessera/plan/schedule.h"

namespace tessera::engine {

using at::Tensor;

struct Message {
  std::vector<Tensor> stream, cond;  ///< gradients of them on the way back
  std::vector<Tensor> tensors() const;
};

class StageMessages {
 public:
  /// Makes the communicators of this rank's neighbours; all ranks together. Nothing without a pp axis.
  StageMessages(comm::Comm& comm, const plan::Plan& plan, int rank);

  bool active() const { return ranks_ > 1; }
  /// Whether conditioning, or its gradient, is part of it.
  bool carries_conditioning(const plan::Instruction& in) const;
  /// Memory of what a `recv` gets.
  Message make(const plan::Instruction& in, const BoundaryShapes& shapes) const;
  /// A `send` or `recv`; blocks until it is done. Throws InternalError when it is more than the schedule says.
  void exchange(const plan::Instruction& in, const Message& message, std::vector<plan::Comm>& done);
  /// Hands the result of a forward-only pass, which the last stage has, to all stages.
  Tensor share_result(Tensor result, const TensorShape& shape, std::vector<plan::Comm>& done);

 private:
  const plan::Plan plan_;  // of its stages, which are the same in every program
  const int ranks_;
  bool has_last_ = true;
  int last_rank_ = 0;  // place on the pp axis of who has the last stage
  std::map<plan::Lane, comm::Group*> pairs_;
  comm::Group* results_ = nullptr;
};

/// Whether the message goes towards the last stage.
bool goes_forward(const plan::Instruction& in);

}  // namespace tessera::engine
