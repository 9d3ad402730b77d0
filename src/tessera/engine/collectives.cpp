#include "tessera/engine/collectives.h"

#include <algorithm>
#include <map>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/ops/ranges.h"
#include "tessera/plan/device_groups.h"
#include "tessera/plan/optimizers.h"

namespace tessera::engine {

namespace {

void lend(comm::Group* group, const Tensor& memory) {
  if (group && memory.defined() && !memory.is_cpu())
    group->lend(memory.mutable_data_ptr(), static_cast<int64_t>(memory.nbytes()));
}

}  // namespace

SlotGroups::SlotGroups(comm::Comm& comm, const plan::Plan& plan, Store& store)
    : store_(store), reduce_dtype_(plan.reduce), outer_(comm.group("reduce_outer", {Axis::dp_replicate})) {
  const auto made = [&](std::string_view purpose, const std::vector<Axis>& axes) -> comm::Group* {
    comm::Group& group = comm.group(purpose, axes);
    return group.size() > 1 ? &group : nullptr;
  };
  const bool summed = plan::row(plan.states.optimizer).rounds > 0, whole = plan::row(plan.states.optimizer).whole;
  const int rank = outer_.members()[static_cast<size_t>(outer_.rank())];
  for (int u = 0; u < store.units(); ++u) {
    std::vector<OfBuffer>& buffers = of_.emplace_back();
    for (const plan::Buffer& buffer : store.layout(u).buffers) {
      std::map<std::string_view, comm::Group*> of;  // by purpose; null: a group of one
      const std::vector<plan::DeviceGroup> groups = plan::buffer_groups(plan, buffer);
      for (const auto& [purpose, axes] : groups)
        if ((of[purpose] = made(purpose, axes))) of[purpose]->connect();
      for (comm::Group* group : {of["gather"], of["reduce"]})
        if (group && std::ranges::find(of_slots_, group) == of_slots_.end()) of_slots_.push_back(group);
      const std::vector<Axis> over = plan::sum_axes(plan, buffer);
      const bool adds = summed && buffer.trainable;
      comm::Group* sums = adds ? made(plan::kSums, over) : nullptr;
      comm::Group* host_sums = adds ? made(plan::kHostSums, over) : nullptr;
      comm::Group* matrices = whole && buffer.trainable ? made(plan::kMatrices, over) : nullptr;
      comm::Group* host_matrices = whole && buffer.trainable ? made(plan::kHostMatrices, over) : nullptr;
      buffers.push_back({of["gather"], of["reduce"], of["reduce_whole"], of["gather_outer"], sums, host_sums, matrices,
                         host_matrices});
    }
    if (whole) matrices_.push_back(plan::matrix_parts(plan, store.spec(u), store.layout(u), rank));
  }
}

namespace {

/// Where a group's collectives lie in the arena, in their order. A shard that lies in the slot itself is at another offset on
/// every member, as the library wants it.
double places_of(const std::string& group, const std::vector<const plan::Schedule*>& used) {
  std::string places;
  for (const plan::Schedule* schedule : used)
    for (const plan::Instruction& in : schedule->list) {
      if (std::ranges::none_of(in.comm,
                               [&](const plan::Comm& comm) { return comm.group.text().starts_with(group + "["); }))
        continue;
      const bool in_place = in.slot >= 0 && in.scratch >= in.slot && in.scratch < in.slot + in.bytes;
      for (const int64_t at : {in.slot, in.grad, in.target, in_place ? int64_t{-1} : in.scratch})
        places += std::to_string(at) + " ";
    }
  return static_cast<double>(hash_text(places) >> 32);  // exact
}

}  // namespace

void SlotGroups::open_windows(const std::vector<const plan::Schedule*>& used) {
  for (const auto& buffers : of_)
    for (const OfBuffer& of : buffers)
      for (comm::Group* group : {of.gather, of.reduce, of.whole, of.spread}) lend(group, store_.arena());
  lend(&outer_, store_.arena());
  for (comm::Group* group : of_slots_) {
    const auto rows = group->all_gather_doubles({places_of(group->name(), used)});
    if (std::ranges::all_of(rows, [&](const auto& row) { return row == rows.front(); }))
      group->open_window(store_.arena());
  }
}

void SlotGroups::lend_kept() {
  for (int u = 0; u < store_.units(); ++u) {
    const Tensor gradient = store_.grad_at(u, -1);
    lend(&outer_, gradient);
    for (const OfBuffer& of : of_[static_cast<size_t>(u)]) lend(of.whole, gradient);
  }
}

void SlotGroups::close_windows() {
  if (!store_.arena().defined()) return;
  for (comm::Group* group : of_slots_) group->close_window(store_.arena());
}

void SlotGroups::gather(const plan::Instruction& in, Done& done) {
  for (size_t b = 0; b < of_[in.unit].size(); ++b) {
    comm::Group* group = of_[in.unit][b].gather;
    const auto note = [&](int64_t sent) {
      if (group) done.push_back({group->axis(), "all_gather", sent});
    };
    if (!store_.layout(in.unit).buffers[b].in_codes) {
      note(store_.gather(in.unit, static_cast<int>(b), in.slot, group, in.scratch, in.codes));
      continue;
    }
    for (const bool columns : {false, true})
      if (columns ? has_columns(in.codes) : has_rows(in.codes))
        for (const int64_t sent :
             store_.gather_codes(in.unit, static_cast<int>(b), in.slot, group, in.scratch, in.codes, columns))
          note(sent);
  }
}

void SlotGroups::reduce(const plan::Instruction& in, Done& done) {
  const plan::UnitLayout& layout = store_.layout(in.unit);
  const Tensor shards = store_.grad_at(in.unit, in.target);
  for (size_t b = 0; b < layout.buffers.size(); ++b) {
    comm::Group* group = of_[in.unit][b].reduce;
    if (!group) continue;
    const plan::Buffer& buffer = layout.buffers[b];
    const Tensor shard = shards.narrow(0, buffer.held, buffer.shard);
    const int64_t at = buffer.grad_at * static_cast<int64_t>(sizeof(float));
    const Tensor whole = store_.arena(in.grad + at, buffer.total),
                 scratch = store_.arena(in.scratch + at, buffer.total);
    if (reduce_dtype_ == DType::f32)
      group->reduce_scatter(shard, whole, scratch, in.add);
    else
      reduce_scatter_rounded(*group, scalar_type(reduce_dtype_), shard, whole, scratch, in.add);
    done.push_back({group->axis(), "reduce_scatter", shard.numel() * size_of(reduce_dtype_) * (group->size() - 1)});
  }
}

void SlotGroups::reduce_outer(const plan::Instruction& in, Done& done) {
  const plan::UnitLayout& layout = store_.layout(in.unit);
  if (layout.partitioned()) return reduce_partition(in, done);
  const Tensor shards = store_.grad_at(in.unit, in.target);
  const auto sum = [&](comm::Group& group, const Tensor& part) {
    if (reduce_dtype_ == DType::f32)
      group.all_reduce(part);
    else
      all_reduce_rounded(group, scalar_type(reduce_dtype_), part);
    done.push_back({group.axis(), "all_reduce", part.numel() * size_of(reduce_dtype_)});
  };
  if (layout.sharded) return sum(outer_, shards);
  for (size_t b = 0; b < layout.buffers.size(); ++b)
    if (comm::Group* group = of_[in.unit][b].whole)
      sum(*group, shards.narrow(0, layout.buffers[b].held, layout.buffers[b].shard));
}

/// The same with two_level: this rank gets the sum of its own partition, the other partitions are lost.
void SlotGroups::reduce_partition(const plan::Instruction& in, Done& done) {
  const plan::UnitLayout& layout = store_.layout(in.unit);
  const Tensor shards = store_.grad_at(in.unit, in.target), scratches = store_.arena(in.scratch, layout.grad_shard);
  for (size_t b = 0; b < layout.buffers.size(); ++b) {
    const plan::Buffer& buffer = layout.buffers[b];
    if (!buffer.trainable) continue;
    comm::Group& group = buffer.shards > 1 ? outer_ : *of_[in.unit][b].whole;
    const Tensor shard = shards.narrow(0, buffer.held, buffer.shard),
                 scratch = scratches.narrow(0, buffer.held, buffer.shard);
    const Tensor own = store_.partition(in.unit, static_cast<int>(b), shard);
    if (reduce_dtype_ == DType::f32) {
      group.reduce_scatter(own, shard, scratch, false);
    } else {
      reduce_scatter_rounded(group, scalar_type(reduce_dtype_), own, shard, scratch, false);
      // The other partitions hold rounded values that are no gradient. A persistent gradient must have zero padding.
      const int64_t before = own.storage_offset() - shard.storage_offset(), after = before + buffer.partition();
      shard.narrow(0, 0, before).zero_();
      shard.narrow(0, after, buffer.shard - after).zero_();
    }
    done.push_back({group.axis(), "reduce_scatter", buffer.partition() * size_of(reduce_dtype_) * (group.size() - 1)});
  }
}

void SlotGroups::gather_outer(const plan::Instruction& in, Done& done) {
  for (size_t b = 0; b < of_[in.unit].size(); ++b) {
    comm::Group* group = of_[in.unit][b].spread;
    if (!group) continue;
    const Tensor shard = store_.shard(in.unit, static_cast<int>(b), in.slot);
    const Tensor own = store_.partition(in.unit, static_cast<int>(b), shard);
    group->all_gather(shard, own);
    done.push_back({group->axis(), "all_gather", static_cast<int64_t>(own.nbytes()) * (group->size() - 1)});
  }
}

SumOver SlotGroups::sum_over(const plan::Instruction& in, Done& done) const {
  return [&](int buffer, const Tensor& values) {
    const OfBuffer& of = of_[in.unit][static_cast<size_t>(buffer)];
    comm::Group* group = in.lane == plan::Lane::host ? of.host_sums : of.sums;
    if (!group) return;
    group->all_reduce(values);
    done.push_back({group->axis(), "all_reduce", static_cast<int64_t>(values.nbytes())});
  };
}

WholeUpdate SlotGroups::whole_of(const plan::Instruction& in, Tensor work, Done& done) const {
  if (matrices_.empty() || in.work == 0) return {};
  const auto exchange = [this, &in, &done](int buffer, const std::vector<Tensor>& out,
                                           const std::vector<Tensor>& from) {
    const OfBuffer& of = of_[in.unit][static_cast<size_t>(buffer)];
    comm::Group* group = in.lane == plan::Lane::host ? of.host_matrices : of.matrices;
    group->all_to_all(out, from);
    int64_t bytes = 0;
    for (int m = 0; m < group->size(); ++m)
      if (m != group->rank()) bytes += static_cast<int64_t>(out[static_cast<size_t>(m)].nbytes());
    done.push_back({group->axis(), plan::kAllToAll, bytes});
  };
  return {&matrices_[static_cast<size_t>(in.unit)], std::move(work), exchange};
}

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

using at::Tensor;

void reduce_scatter_rounded(comm::Group& group, at::ScalarType type, const Tensor& shard, const Tensor& flat,
                            const Tensor& scratch, bool accumulate) {
  const int64_t n = shard.numel();
  ops::narrow_in_place(flat, type);
  std::vector<Tensor> send, received;
  for (int i = 0; i < group.size(); ++i) {
    send.push_back(flat.view(type).narrow(0, i * n, n));
    received.push_back(scratch.view(type).narrow(0, i * n, n));
  }
  group.all_to_all(send, received);
  ops::sum_halves(shard, received, accumulate);
}

void all_reduce_rounded(comm::Group& group, at::ScalarType type, const Tensor& tensor) {
  const int64_t n = tensor.numel(), members = group.size();
  if (members == 1) return;
  ops::narrow_in_place(tensor, type);
  const Tensor mine = tensor.view(type).narrow(0, 0, n);
  const auto begin = [&](int64_t i) { return n * i / members; };
  const int64_t own = begin(group.rank() + 1) - begin(group.rank());
  // Behind the send buffer is room for n values of the others' parts; parts of different lengths may need more.
  const bool fits = (members - 1) * own <= n;
  const Tensor space = fits ? tensor.view(type).narrow(0, n, n) : at::empty({(members - 1) * own}, mine.options());
  std::vector<Tensor> send, received;
  for (int64_t i = 0, at = 0; i < members; ++i) {
    send.push_back(mine.narrow(0, begin(i), begin(i + 1) - begin(i)));
    if (i == group.rank())
      received.push_back(send.back());
    else
      received.push_back(space.narrow(0, at, own)), at += own;
  }
  group.all_to_all(send, received);
  ops::sum_halves_rounded(send[group.rank()], received);
  group.all_to_all(std::vector<Tensor>(static_cast<size_t>(members), send[group.rank()]), send);
  ops::copy_bytes(tensor.view(type).narrow(0, n, n), mine);
  ops::widen_in_place(tensor, type);
}

}  // namespace tessera::engine
