// The executor's gathers and reductions: each is a collective over one of the store's buffers.
#include "tessera/engine/executor.h"
#include "tessera/engine/memory/meter.h"
#include "tessera/engine/parallel/reduce_rounded.h"

namespace tessera::engine {

void Executor::gather(const plan::Instruction& in, std::vector<plan::Comm>& done) {
  for (size_t b = 0; b < gather_[in.unit].size(); ++b) {
    comm::Group* group = gather_[in.unit][b];
    const int64_t sent = store_.gather(in.unit, static_cast<int>(b), in.slot, group, in.scratch);
    if (group) done.push_back({group->axis(), "all_gather", sent});
  }
}

namespace {

void lend(comm::Group* group, const Tensor& memory) {
  if (group && memory.defined() && !memory.is_cpu())
    group->lend(memory.mutable_data_ptr(), static_cast<int64_t>(memory.nbytes()));
}

}  // namespace

void Executor::open_windows() {
  if (!by_device_) return;
  for (int u = 0; u < store_.units(); ++u)
    for (const auto* groups : {&gather_, &reduce_, &whole_, &spread_})
      for (comm::Group* group : (*groups)[static_cast<size_t>(u)]) lend(group, store_.arena());
  lend(&outer_, store_.arena());
  const device::Block room = Meter::room();
  parallel_.lend(within_units_, room);
  messages_.lend(room);
  for (comm::Group* group : of_slots_) group->open_window(store_.arena());
}

void Executor::lend_kept() {
  if (!by_device_) return;
  for (int u = 0; u < store_.units(); ++u) {
    const Tensor gradient = store_.grad_at(u, -1);
    lend(&outer_, gradient);
    for (comm::Group* group : whole_[static_cast<size_t>(u)]) lend(group, gradient);
  }
}

void Executor::close_windows() {
  if (!store_.arena().defined()) return;
  for (comm::Group* group : of_slots_) group->close_window(store_.arena());
}

void Executor::reduce(const plan::Instruction& in, std::vector<plan::Comm>& done) {
  const plan::UnitLayout& layout = store_.layout(in.unit);
  const Tensor shards = store_.grad_at(in.unit, in.target);
  for (size_t b = 0; b < layout.buffers.size(); ++b) {
    comm::Group* group = reduce_[in.unit][b];
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

/// Sums a unit's gradient over the replicas: of the same shard, or of the same whole gradient.
void Executor::reduce_outer(const plan::Instruction& in, std::vector<plan::Comm>& done) {
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
    if (comm::Group* group = whole_[in.unit][b])
      sum(*group, shards.narrow(0, layout.buffers[b].held, layout.buffers[b].shard));
}

/// The same with two_level: this rank gets the sum of its own partition, the other partitions are lost.
void Executor::reduce_partition(const plan::Instruction& in, std::vector<plan::Comm>& done) {
  const plan::UnitLayout& layout = store_.layout(in.unit);
  const Tensor shards = store_.grad_at(in.unit, in.target), scratches = store_.arena(in.scratch, layout.grad_shard);
  for (size_t b = 0; b < layout.buffers.size(); ++b) {
    const plan::Buffer& buffer = layout.buffers[b];
    if (!buffer.trainable) continue;
    comm::Group& group = buffer.shards > 1 ? outer_ : *whole_[in.unit][b];
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

void Executor::gather_outer(const plan::Instruction& in, std::vector<plan::Comm>& done) {
  for (size_t b = 0; b < spread_[in.unit].size(); ++b) {
    comm::Group* group = spread_[in.unit][b];
    if (!group) continue;
    const Tensor shard = store_.shard(in.unit, static_cast<int>(b), in.slot);
    const Tensor own = store_.partition(in.unit, static_cast<int>(b), shard);
    group->all_gather(shard, own);
    done.push_back({group->axis(), "all_gather", static_cast<int64_t>(own.nbytes()) * (group->size() - 1)});
  }
}

/// An update, with the sums over its tensors.
void Executor::update(const Run& run, const plan::Instruction& in, std::vector<plan::Comm>& done) {
  const bool on_host = in.lane == plan::Lane::host;
  const std::vector<comm::Group*>& groups = (on_host ? host_sums_ : sums_)[in.unit];
  const Store::SumOver sum = [&](int buffer, std::vector<float>& values) {
    comm::Group* group = groups[static_cast<size_t>(buffer)];
    if (!group) return;
    group->all_reduce(at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kFloat));
    done.push_back({group->axis(), "all_reduce", static_cast<int64_t>(values.size() * sizeof(float))});
  };
  store_.update(in.unit, *run.update, *control_,
                {in.slot, in.grad, in.scratch, in.grad < 0 || run.plan().update != plan::Update::in_backward},
                on_host ? &workers(run.plan().update_threads) : nullptr, sum);
}

}  // namespace tessera::engine
