#include "tessera/engine/stage_messages.h"

#include <set>

#include "tessera/base/check.h"

namespace tessera::engine {

namespace {

Tensor empty(const TensorShape& shape, at::Device device) {
  return at::empty(shape.sizes, at::TensorOptions(shape.type).device(device));
}

}  // namespace

std::vector<Tensor> Message::tensors() const {
  std::vector<Tensor> all = stream;
  all.insert(all.end(), cond.begin(), cond.end());
  return all;
}

bool goes_forward(const plan::Instruction& in) {
  return in.lane == plan::Lane::send_next || in.lane == plan::Lane::recv_prev;
}

StageMessages::StageMessages(comm::Comm& comm, const plan::Plan& plan, int rank)
    : plan_(plan), ranks_(plan.mesh[Axis::pp]) {
  if (ranks_ == 1) return;
  const std::vector<int> stages = plan.mesh.group(rank, {Axis::pp});
  const int here = plan.mesh.coordinate(rank, Axis::pp);
  // Neighbours form a ring: all ranks make the communicators in one order, or each would wait for its next one first.
  for (int edge = 0; edge < ranks_; ++edge) {
    const bool wraps = edge + 1 == ranks_, sends = here == edge, receives = here == (edge + 1) % ranks_;
    if (!(sends || receives) || (wraps && plan.pipeline.chunks == 1)) continue;
    const std::vector<int> pair =
        wraps ? std::vector{stages.front(), stages.back()} : std::vector{stages[edge], stages[edge + 1]};
    const std::string suffix = wraps ? "_wrap" : "";
    comm::Group& forward = comm.group_of("activations" + suffix, "pp", pair);
    comm::Group& back = comm.group_of("gradients" + suffix, "pp", pair);
    forward.connect(), back.connect();
    if (sends) pairs_[plan::Lane::send_next] = &forward, pairs_[plan::Lane::recv_next] = &back;
    if (receives) pairs_[plan::Lane::recv_prev] = &forward, pairs_[plan::Lane::send_prev] = &back;
  }
  results_ = &comm.group("results", {Axis::pp});
  results_->connect();
  last_rank_ = (plan.stages() - 1) % ranks_;
  has_last_ = here == last_rank_;
}

void StageMessages::lend(device::Block memory) const {
  std::set<comm::Group*> lent;  // the same group for both lanes of a direction
  for (const auto& [lane, group] : pairs_)
    if (lent.insert(group).second) group->lend(memory.data, memory.bytes);
  if (results_) results_->lend(memory.data, memory.bytes);
}

bool StageMessages::carries_conditioning(const plan::Instruction& in) const {
  // Each rank gets the conditioning once, with its first stage, and sends its gradient back from there.
  return plan_.stage_of(goes_forward(in) ? in.unit : in.unit + 1) < ranks_;
}

Message StageMessages::make(const plan::Instruction& in, const BoundaryShapes& shapes, at::Device device) const {
  const int cut = goes_forward(in) ? in.unit : in.unit + 1;
  Message message;
  for (const TensorShape& shape : shapes.stream.at(cut)) message.stream.push_back(empty(shape, device));
  if (carries_conditioning(in))
    for (const TensorShape& shape : shapes.cond) message.cond.push_back(empty(shape, device));
  return message;
}

void StageMessages::exchange(const plan::Instruction& in, const Message& message, std::vector<plan::Comm>& done) {
  comm::Group& pair = *pairs_.at(in.lane);
  int64_t bytes = 0;
  for (const Tensor& tensor : message.tensors()) {
    bytes += static_cast<int64_t>(tensor.nbytes());
    in.op == plan::Op::send ? pair.send(tensor) : pair.recv(tensor);
  }
  // The schedule has the bytes of the largest micro-batch.
  check_internal(bytes <= in.bytes, "engine.messages",
                 std::string(name(in.op)) + " " + in.name + " moves " + std::to_string(bytes) +
                     " bytes, the schedule says " + std::to_string(in.bytes));
  done = in.comm;
}

Tensor StageMessages::share_result(Tensor result, const TensorShape& shape, at::Device device,
                                   std::vector<plan::Comm>& done) {
  if (!has_last_) result = empty(shape, device);
  result = result.contiguous();
  results_->broadcast(result, last_rank_);
  const auto bytes = static_cast<int64_t>(result.nbytes());
  done.push_back({results_->axis(), "broadcast", has_last_ ? bytes * (ranks_ - 1) : 0});
  return result;
}

}  // namespace tessera::engine
