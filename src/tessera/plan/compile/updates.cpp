// Optimiser updates: all at the end of the step, deferred to each unit's next gather, or after each unit's last
// reduction.
#include "tessera/plan/compile/compiler.h"
#include "tessera/plan/optimizers.h"

namespace tessera::plan {

/// All updates in a row. Reloads for the next update overlap the current one.
void Compiler::update_all() {
  std::deque<Staged> staged;
  size_t issued = 0;
  std::vector<int> trained;
  for (const int u : own_)
    if (sizes_.layout(u).grad_total > 0) trained.push_back(u);
  for (size_t i = 0; i < trained.size(); ++i) {
    for (; issued < trained.size() && issued <= i + plan_.prefetch; ++issued) staged.push_back(stage(trained[issued]));
    update(trained[i], std::move(staged.front()));
    staged.pop_front();
    retire(plan_.prefetch == 0 ? 0 : 1);
  }
  retire(0);
}

/// Applies deferred updates of the units that visit `v` and the gathers issued ahead of it use. Their buffers are
/// reloaded one visit earlier and overlap the previous visit's compute.
void Compiler::apply_pending_updates(const std::vector<Visit>& visits, int v) {
  const int count = static_cast<int>(visits.size());
  const auto is_next = [&](size_t index, int ahead) {
    if (index >= pending_.size()) return false;
    for (int w = v; w < count && w <= v + ahead; ++w)
      if (visits[w].unit == pending_[index]) return true;
    return false;
  };
  const int early = plan_.prefetch == 0 ? 0 : plan_.prefetch + 1;
  while (is_next(updated_count_, plan_.prefetch) || is_next(staged_count_, early)) {
    if (is_next(staged_count_, early)) {
      staged_.push_back(stage(pending_[staged_count_++]));
      if (plan_.prefetch > 0) continue;
    }
    const int unit = pending_[updated_count_++];
    updated_[unit] = update(unit, std::move(staged_.front()));
    staged_.pop_front();
    retire(plan_.prefetch == 0 ? 0 : 1);
  }
}

/// Queues the update of a unit whose complete gradient is at arena offset `gradient`, or in place (-1). It runs one
/// such unit later, so that neither the reduction nor reloads delay the next backward.
void Compiler::queue_update(int unit, int64_t gradient, int last) {
  Due due{unit, stage(unit)};
  due.staged.gradients = gradient;
  due.staged.wait.push_back(last);
  due_.push_back(std::move(due));
  run_due_updates(plan_.prefetch == 0 ? 0 : 1);
}

/// Runs the oldest queued updates until at most `bound` are left.
void Compiler::run_due_updates(size_t bound) {
  for (; due_.size() > bound; due_.pop_front()) update(due_.front().unit, std::move(due_.front().staged));
  retire(update_flights_, plan_.prefetch == 0 ? 0 : 1);
}

/// Reloads the offloaded buffers of an update. A host update uses them in place; in the backward the gradient is
/// already in the arena.
Compiler::Staged Compiler::stage(int unit) {
  Staged staged;
  if (updates_on_host(unit)) return staged;
  for (const auto& [part, at] : {std::pair(Part::parameters, &staged.parameters),
                                 {Part::gradients, &staged.gradients},
                                 {Part::states, &staged.states}}) {
    if (part == Part::gradients && plan_.update == Update::in_backward) continue;
    if (tier(unit, part) == Tier::device || bytes(unit, part) == 0) continue;
    Waits wait;
    *at = arena_.take(updated_bytes(unit, part), wait);
    staged.wait.push_back(reload(part, unit, -1, *at, wait));
  }
  return staged;
}

int Compiler::update(int unit, Staged staged) {
  const bool on_host = updates_on_host(unit);
  Instruction in = make(Op::update, on_host ? Lane::host : Lane::compute, unit, -1);
  in.bytes = sizes_.layout(unit).grad_partition * kElement;
  in.slot = staged.parameters, in.grad = staged.gradients, in.scratch = staged.states;
  in.wait = std::move(staged.wait);
  sum_over_tensors(in);
  if (on_host) {  // it changes the buffers in place: after the fetches of them so far; later ones wait for it
    if (const auto read = fetched_.find(unit); read != fetched_.end()) in.wait.push_back(read->second);
    if (norm_ >= 0) in.wait.push_back(norm_);
    await_write(in, Part::gradients);
    const int at = add(std::move(in));
    for (const Part part : {Part::gradients, Part::states}) written(unit, part) = at;
    return written(unit, Part::parameters) = gather_partitions(unit, -1, at);
  }
  const int at = add(std::move(in)), whole = gather_partitions(unit, staged.parameters, at);
  Flight flight;
  if (staged.gradients >= 0) flight.push_back({staged.gradients, at});
  if (staged.parameters >= 0)
    flight.push_back({staged.parameters, offload(Part::parameters, unit, -1, staged.parameters, {whole})});
  if (staged.states >= 0) flight.push_back({staged.states, offload(Part::states, unit, -1, staged.states, {at})});
  std::deque<Flight>& flights = plan_.update == Update::in_backward ? update_flights_ : flights_;
  if (!flight.empty()) flights.push_back(std::move(flight));
  return whole;
}

/// Declares the sums over tensors of an update ([Note: sums over tensors] of net/unit_update.h).
void Compiler::sum_over_tensors(Instruction& in) const {
  for (int round = 0; round < row(plan_.states.optimizer).rounds; ++round)
    for (const Buffer& buffer : sizes_.layout(in.unit).buffers) {
      const GroupName& group = group_name(in.lane == Lane::host ? kHostSums : kSums, sum_axes(plan_, buffer));
      const int64_t count = sums(plan_, model_.units[in.unit], buffer, round);
      if (!group.axis.empty() && count > 0) in.comm.push_back({group.axis, kAllReduce, count * kElement, group.name});
    }
  if (!in.comm.empty()) in.group = in.comm.front().group;
}

/// All-gathers the partitions that the replicas updated; nothing without partitions. Returns the instruction after
/// which the parameter shard is complete. `parameters`: arena offset, -1 if in place.
int Compiler::gather_partitions(int unit, int64_t parameters, int update) {
  if (!sizes_.layout(unit).partitioned()) return update;
  Instruction in = make(Op::gather_outer, Lane::gather, unit, -1);
  const int64_t element = master_bytes(plan_.states.masters);
  in.bytes = sizes_.layout(unit).grad_shard * element;
  in.slot = parameters;
  in.wait = {update};
  for (const Buffer& buffer : sizes_.layout(unit).buffers) {
    if (!buffer.trainable) continue;
    const GroupName& group = group_name("gather_outer", plan_.outer_axes(buffer));
    in.comm.push_back({group.axis, kAllGather, buffer.partition() * element * (buffer.partitions - 1), group.name});
  }
  in.group = in.comm.front().group;
  return add(std::move(in));
}

}  // namespace tessera::plan
