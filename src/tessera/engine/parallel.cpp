#include "tessera/engine/parallel.h"

#include <algorithm>

#include "tessera/base/check.h"

namespace tessera::engine {

namespace {

/// kSequenceAxes without tp.
const std::vector<Axis> kCpSpAxes = {Axis::cp, Axis::sp};

int64_t bytes_to_others(const std::vector<Tensor>& out, int self) {
  int64_t sum = 0;
  for (int i = 0; i < static_cast<int>(out.size()); ++i)
    if (i != self && out[i].defined()) sum += static_cast<int64_t>(out[i].nbytes());
  return sum;
}

}  // namespace

Parallel::Parallel(const Mesh& mesh, int rank, comm::Comm* comm) : mesh_(mesh), rank_(rank), comm_(comm) {
  if (!comm) return;
  for (const auto& [purpose, axis] :
       {std::pair("sequence", Axis::sp), {"ring", Axis::cp}, {"tensor", Axis::tp}, {"norms", Axis::tp}})
    comm->group(purpose, {axis});  // made now, by all ranks in one order: threads use them
  if (cuts_attention()) lane_ = std::make_unique<LaneThread>();
}

void Parallel::connect(const std::vector<plan::DeviceGroup>& groups) const {
  for (const plan::DeviceGroup& group : groups) comm_->group(group.purpose, group.axes).connect();
}

void Parallel::lend(const std::vector<plan::DeviceGroup>& groups, device::Block memory) const {
  for (const plan::DeviceGroup& group : groups) comm_->group(group.purpose, group.axes).lend(memory.data, memory.bytes);
}

comm::Group& Parallel::group(const char* purpose, const std::vector<Axis>& axes,
                             const std::vector<Tensor>& tensors) const {
  comm::Group& group = comm_->group(purpose, axes);
  const bool far = std::ranges::any_of(tensors, [](const Tensor& t) { return t.defined() && !t.is_cpu(); });
  check_internal(!far || !comm_->by_device() || group.size() == 1 || group.by_device(), "engine.parallel",
                 "no unit was measured to send by " + group.name() + ", which is not connected");
  return group;
}

Parallel::Transfer Parallel::start(const char* purpose, Axis axis, Send send, const std::vector<Tensor>& out,
                                   const std::vector<Tensor>& in) const {
  Transfer transfer;
  if (!comm_) return transfer;
  comm::Group* const group = &this->group(purpose, {axis}, out);
  // The thread drops its references before the future is ready: memory is freed at the instruction that frees it. What is
  // only enqueued by then stays in the transfer until this thread's stream comes after it.
  const auto issued = std::make_shared<device::Mark>();
  transfer.passed_ = std::make_shared<device::Mark>();
  issued->record();
  auto task =
      std::make_shared<std::packaged_task<void()>>([group, send, out = out, in = in, issued, passed = transfer.passed_,
                                                    label = "beside " + device::labelled()]() mutable {
        device::label(label);
        issued->order();
        send(*group, std::exchange(out, {}), std::exchange(in, {}));
        passed->record();
      });
  transfer.group_ = group;
  transfer.done_ = task->get_future();
  lane_->push([task] { (*task)(); });
  if (group->by_device()) {
    transfer.under_way_ = out;
    transfer.under_way_.insert(transfer.under_way_.end(), in.begin(), in.end());
    transfer.done_.wait();  // issued in this instruction's turn: [Note: one order of issue]
  }
  return transfer;
}

Parallel::Transfer Parallel::exchange_heads(const std::vector<Tensor>& out, const std::vector<Tensor>& in,
                                            plan::Rows rows, int64_t row_bytes) const {
  if (!comm_) in[sp_rank()].copy_(out[sp_rank()]);
  Transfer transfer = start(
      "sequence", Axis::sp, [](comm::Group& group, const auto& to, const auto& from) { group.all_to_all(to, from); },
      out, in);
  note({"sequence", {Axis::sp}, "all_to_all", rows, row_bytes}, bytes_to_others(out, sp_rank()));
  if (traffic_)
    transfer.awaited_ = [this, notes = traffic_, at = traffic_->size() - 1] {
      if (traffic_ == notes) (*notes)[at].awaited = work_done();
    };
  return transfer;
}

Parallel::Transfer Parallel::pass_on(const Tensor& out, const Tensor& in, int64_t& sent) const {
  sent += static_cast<int64_t>(out.nbytes());
  return start("ring", Axis::cp,
               [](comm::Group& group, const auto& to, const auto& from) { group.shift(to[0], from[0]); }, {out}, {in});
}

void Parallel::Transfer::wait() {
  if (awaited_) std::exchange(awaited_, nullptr)();
  if (!done_.valid()) return;
  group_->waits(true);
  done_.get();
  passed_->order();
  under_way_.clear();
  group_->waits(false);
}

Parallel::Transfer::~Transfer() {
  if (done_.valid()) done_.wait();  // on the way out of a failure: the tensors are still in use
}

plan::WorkDone Parallel::work_done() const {
  const ops::ProductFlops now = ops::session().products;
  return {now.results - before_.results, now.weight_grads - before_.weight_grads};
}

void Parallel::note_ring(plan::Rows rows, int64_t row_bytes, int64_t sent) const {
  note({"ring", {Axis::cp}, "ring", rows, row_bytes}, sent);
}

void Parallel::exchange_tokens(const std::vector<Tensor>& out, const std::vector<Tensor>& in, const char* kind,
                               plan::Rows rows, int64_t row_bytes, SamplePart part) const {
  if (comm_)
    group("tensor", {Axis::tp}, in).all_to_all(out, in);
  else
    in[tp_rank()].copy_(out[tp_rank()]);
  note({"tensor", {Axis::tp}, kind, rows, row_bytes, part}, bytes_to_others(out, tp_rank()));
}

void Parallel::exchange_blocks(const std::vector<Tensor>& out, const std::vector<Tensor>& in, const char* kind,
                               plan::Rows rows, int64_t row_bytes) const {
  if (comm_)
    group("blocks", {Axis::cp}, in).all_to_all(out, in);
  else
    in[cp_rank()].copy_(out[cp_rank()]);
  note({"blocks", {Axis::cp}, kind, rows, row_bytes}, bytes_to_others(out, cp_rank()));
}

void Parallel::exchange_reach(const std::vector<Tensor>& out, const std::vector<Tensor>& in, bool over_tp,
                              plan::Rows rows, int64_t reach, int64_t row_bytes, SamplePart part) const {
  if (comm_)
    group("reach", over_tp ? plan::kSequenceAxes : kCpSpAxes, in).all_to_all(out, in);
  else
    in[sharer(over_tp)].copy_(out[sharer(over_tp)]);
  note({"reach", over_tp ? plan::kSequenceAxes : kCpSpAxes, "all_to_all", rows, row_bytes, part, reach},
       bytes_to_others(out, sharer(over_tp)));
}

void Parallel::sum_states(const Tensor& states, bool over_tp) const {
  const int n = sharers(over_tp), self = sharer(over_tp);
  if (n == 1) return;
  const Tensor all = at::empty({n, states.numel()}, states.options());
  std::vector<Tensor> out(n, states.view(-1)), in;
  for (int i = 0; i < n; ++i) in.push_back(all[i]);
  if (comm_)
    group("states", over_tp ? plan::kSequenceAxes : kCpSpAxes, in).all_to_all(out, in);
  else
    in[self].copy_(out[self]);
  Tensor sum = states.view(-1);
  at::sum_out(sum, all, 0);
  const int64_t each = states.numel() / states.size(0) * static_cast<int64_t>(states.element_size());
  note({"states", over_tp ? plan::kSequenceAxes : kCpSpAxes, "all_gather", plan::Rows::context, each * (n - 1)},
       bytes_to_others(out, self));
}

void Parallel::sum_rows(const Tensor& rows, plan::Rows of, int64_t samples, SamplePart part) const {
  const int n = tp(), self = tp_rank();
  const Tensor all = at::empty({n, rows.numel()}, rows.options());
  std::vector<Tensor> out(n, rows), in;
  for (int i = 0; i < n; ++i) in.push_back(all[i]);
  if (comm_)
    group("norms", {Axis::tp}, in).all_to_all(out, in);
  else
    in[self].copy_(rows);
  at::sum_out(const_cast<Tensor&>(rows), all, 0);
  const int64_t each = of == plan::Rows::own ? 1 : rows.numel() / samples;
  note({"norms", {Axis::tp}, "all_gather", of, each * static_cast<int64_t>(rows.element_size()) * (n - 1), part},
       bytes_to_others(out, self));
}

const ops::SharedWidth& Parallel::shared_width(int64_t width, plan::Rows rows, int64_t samples, SamplePart part) const {
  ops::SharedWidth& shared = widths_[{width, static_cast<int64_t>(rows), samples, part[0], part[1]}];
  if (shared.width == 0)
    shared = {width, [this, rows, samples, part](const Tensor& sums) { sum_rows(sums, rows, samples, part); }};
  return shared;
}

Tensor Parallel::gather_tokens(const Tensor& rows, int64_t tokens) const {
  const int n = plan::sequence_size(mesh_), self = plan::sequence_rank(mesh_, rank_);
  check_internal(rows.size(0) == share(tokens).count(), "engine.parallel", "these rows are not this rank's share");
  Tensor whole = at::empty({tokens, rows.size(1)}, rows.options());
  const Tensor mine = rows.contiguous();
  std::vector<Tensor> out(n, mine), in(n);
  for (int i = 0; i < n; ++i) {
    const auto range = plan::token_share(tokens, i, n);
    in[i] = whole.narrow(0, range.begin, range.count());
  }
  if (comm_)
    group("tokens", plan::kSequenceAxes, in).all_to_all(out, in);
  else
    in[self].copy_(mine);
  note({"tokens", plan::kSequenceAxes, "all_gather", plan::Rows::share,
        rows.size(1) * static_cast<int64_t>(rows.element_size()) * (n - 1)},
       bytes_to_others(out, self));
  return whole;
}

void Parallel::sum(const Tensor& tensor) const {
  if (comm_) group("sums", plan::kSequenceAxes, {tensor}).all_reduce(tensor.view(-1));
}

void Parallel::note(const plan::Traffic& traffic, int64_t sent) const {
  std::string names;
  for (Axis axis : traffic.axes)
    if (mesh_[axis] > 1) names += (names.empty() ? "" : "+") + std::string(axis_name(axis));
  if (names.empty()) return;
  if (traffic_) {
    traffic_->push_back(traffic);
    traffic_->back().begun = traffic_->back().awaited = work_done();
  }
  if (ran_) ran_->push_back({names, traffic.kind, sent});
}

}  // namespace tessera::engine
