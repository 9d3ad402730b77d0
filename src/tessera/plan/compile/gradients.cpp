// Gradients: written into an arena slot and reduced into shards, or written in place without shards; then the norm. Optimiser
// updates: all at the end of the step, deferred to each unit's next gather, or after each unit's last reduction.
#include "tessera/plan/compile/compiler.h"
#include "tessera/plan/optimizers.h"

namespace tessera::plan {

void Gradients::reduce(const UnitVisit& visit, int backward) {
  const UnitLayout& layout = sizes_.layout(visit.unit);
  Instruction in = draft_.make(Op::reduce, Lane::reduce, visit.unit, visit.micro);
  in.bytes = layout.grad_total * kElement;
  in.grad = draft_.schedule.list[backward].grad;
  in.wait = {backward};
  in.scratch = draft_.arena.take(in.bytes, in.wait);
  in.add = visit.micro > 0 && !plan_.units[visit.unit].reduces_once();
  draft_.collect(in, "reduce", kReduceScatter, Draft::Gathered::trained, size_of(plan_.reduce));
  if (leaves_arena(visit.unit)) {
    Waits wait;
    in.target = draft_.arena.take(layout.grad_shard * kElement, wait);
    if (in.add) wait = {tiers_.reload(Part::gradients, visit.unit, visit.micro, in.target, wait)};
    in.wait.append(wait);
  }
  const int64_t grad = in.grad, scratch = in.scratch, target = in.target;
  const int at = draft_.add(std::move(in));
  draft_.last_reduce = {at};
  Flight flight = {{grad, at}, {scratch, at}};
  if (const auto use = route(visit, target, at, flight)) flight.push_back(*use);
  draft_.flights.push_back(std::move(flight));
  if (plan_.prefetch == 0) draft_.retire(draft_.flights, 0);
}

/// Whether the reduced gradient leaves the arena: offloaded, rounded to bf16, or used at once by an update.
bool Gradients::leaves_arena(int unit) const {
  return plan_.units[unit].gradients != Tier::device || plan_.rounds_gradients() ||
         plan_.transient_gradient(sizes_.layout(unit), unit);
}

/// Handles a micro-batch's gradient after `last` summed it at arena offset `target`, or in place (-1). Returns the
/// arena range still in use and its last user; adds other ranges to `flight`.
std::optional<RangeUse> Gradients::route(const UnitVisit& visit, int64_t target, int last, Flight& flight) {
  const int unit = visit.unit;
  const bool whole = visit.micro + 1 == draft_.schedule.micros;
  const bool in_backward = whole && plan_.update == Update::in_backward, on_host = updates_on_host(unit);
  if (target < 0 && !in_backward) return std::nullopt;  // gradients in place are finalised together before the norm
  if (whole) last = finalise(unit, target, last, flight);
  if (in_backward && !on_host) {
    queue_update(unit, target, last);
    return std::nullopt;
  }
  const RangeUse use{target, tiers_.offload(Part::gradients, unit, visit.micro, target, {last})};
  if (in_backward) update(unit, {});
  return use;
}

/// Emits a reduce_outer if there are replicas. Its receive buffer, needed for partitions, is added to `flight`.
std::optional<int> Gradients::add_outer(Instruction in, Flight& flight) {
  if (in.comm.empty()) return std::nullopt;
  if (sizes_.layout(in.unit).partitioned()) in.scratch = draft_.arena.take(in.bytes, in.wait);
  const int64_t scratch = in.scratch;
  const int at = draft_.add(std::move(in));
  if (scratch >= 0) flight.push_back({scratch, at});
  draft_.last_reduce = {at};
  return at;
}

/// Finalises a step's complete gradient shard before it leaves the arena: the sum over replicas and its share of the
/// norm, which rounds it to its storage dtype. Returns the last instruction.
int Gradients::finalise(int unit, int64_t target, int last, Flight& flight) {
  Instruction in = draft_.make(Op::reduce_outer, Lane::reduce, unit, -1);
  sum_over_replicas(in);
  in.target = target;
  in.wait = {last};
  last = add_outer(std::move(in), flight).value_or(last);
  Instruction norm = draft_.make(Op::norm, Lane::reduce, unit, -1);
  norm.bytes = sizes_.layout(unit).grad_partition * kElement;
  norm.target = target;
  norm.wait = {last};
  last = draft_.add(std::move(norm));
  draft_.last_reduce = {last};
  return last;
}

/// Emits the remaining sums over replicas and the norm over all gradients.
void Gradients::norm() {
  for (size_t i = draft_.own.size(); i-- > 0;) {
    const int u = draft_.own[i];
    if (sizes_.layout(u).grad_total == 0) continue;
    Instruction in = draft_.make(Op::reduce_outer, Lane::reduce, u, -1);
    sum_over_replicas(in);
    if (in.comm.empty() || leaves_arena(u) || plan_.update == Update::in_backward) continue;
    in.wait = sizes_.layout(u).sharded ? draft_.last_reduce : draft_.last_backward;
    if (sizes_.layout(u).partitioned()) draft_.retire(draft_.flights, plan_.prefetch == 0 ? 0 : 1);
    Flight flight;
    add_outer(std::move(in), flight);
    if (!flight.empty()) draft_.flights.push_back(std::move(flight));
  }
  Instruction norm = draft_.make(Op::norm, Lane::compute, -1, -1);
  norm.wait = draft_.last_reduce;
  norm.wait.append(draft_.last_backward);
  if (row(plan_.states.optimizer).distance && plan_.update == Update::in_backward)  // the exchange has their totals
    for (const int u : draft_.own)
      if (const int updated = tiers_.written(u, Part::parameters); updates_on_host(u) && updated >= 0)
        norm.wait.push_back(updated);
  norm.group = draft_.world.name;
  if (!draft_.world.axis.empty()) norm.comm = {{draft_.world.axis, kAllGather, kControlBytes, draft_.world.name}};
  draft_.norm = draft_.add(std::move(norm));
}

/// Declares the sum of a unit's gradients over the ranks that hold the same shard, or the same unsharded buffer. With
/// partitions each rank only needs the sum of the partition it updates: a reduce_scatter.
void Gradients::sum_over_replicas(Instruction& in) const {
  const UnitLayout& layout = sizes_.layout(in.unit);
  const int64_t element = size_of(plan_.reduce);
  in.bytes = layout.grad_shard * kElement;
  const bool partitioned = layout.partitioned();
  if (layout.sharded && !partitioned && !draft_.outer.axis.empty())
    in.comm = {{draft_.outer.axis, kAllReduce, layout.grad_shard * element, draft_.outer.name}};
  for (const Buffer& buffer : layout.buffers) {
    if (!buffer.trainable || (layout.sharded && !partitioned)) continue;
    const GroupName& group =
        partitioned ? draft_.group_name(buffer.shards > 1 ? "reduce_outer" : "reduce_whole", plan_.outer_axes(buffer))
                    : draft_.buffer_group("reduce_whole", buffer);
    if (partitioned)
      in.comm.push_back(
          {group.axis, kReduceScatter, buffer.partition() * element * (buffer.partitions - 1), group.name});
    else if (!group.axis.empty())
      in.comm.push_back({group.axis, kAllReduce, buffer.shard * element, group.name});
  }
  if (!in.comm.empty()) in.group = in.comm.front().group;
}

/// All updates in a row. Reloads for the next update overlap the current one.
void Gradients::update_all() {
  std::deque<Staged> staged;
  size_t issued = 0;
  std::vector<int> trained;
  for (const int u : draft_.own)
    if (sizes_.layout(u).grad_total > 0) trained.push_back(u);
  for (size_t i = 0; i < trained.size(); ++i) {
    for (; issued < trained.size() && issued <= i + plan_.prefetch; ++issued) staged.push_back(stage(trained[issued]));
    update(trained[i], std::move(staged.front()));
    staged.pop_front();
    draft_.retire(draft_.flights, plan_.prefetch == 0 ? 0 : 1);
  }
  draft_.retire(draft_.flights, 0);
}

/// Applies deferred updates of the units that visit `v` and the gathers issued ahead of it use. Their buffers are
/// reloaded one visit earlier and overlap the previous visit's compute.
void Gradients::apply_pending(const std::vector<UnitVisit>& visits, int v) {
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
    draft_.retire(draft_.flights, plan_.prefetch == 0 ? 0 : 1);
  }
}

/// Queues the update of a unit whose complete gradient is at arena offset `gradient`, or in place (-1). It runs one
/// such unit later, so that neither the reduction nor reloads delay the next backward.
void Gradients::queue_update(int unit, int64_t gradient, int last) {
  Due due{unit, stage(unit)};
  due.staged.gradients = gradient;
  due.staged.wait.push_back(last);
  due_.push_back(std::move(due));
  run_due(plan_.prefetch == 0 ? 0 : 1);
}

/// Runs the oldest queued updates until at most `bound` are left.
void Gradients::run_due(size_t bound) {
  for (; due_.size() > bound; due_.pop_front()) update(due_.front().unit, std::move(due_.front().staged));
  draft_.retire(draft_.update_flights, plan_.prefetch == 0 ? 0 : 1);
}

/// Reloads the offloaded buffers of an update. A host update uses them in place; in the backward the gradient is
/// already in the arena.
Gradients::Staged Gradients::stage(int unit) {
  Staged staged;
  if (updates_on_host(unit)) return staged;
  for (const auto& [part, at] : {std::pair(Part::parameters, &staged.parameters),
                                 {Part::gradients, &staged.gradients},
                                 {Part::states, &staged.states}}) {
    if (part == Part::gradients && plan_.update == Update::in_backward) continue;
    if (tiers_.tier(unit, part) == Tier::device || tiers_.bytes(unit, part) == 0) continue;
    Waits wait;
    *at = draft_.arena.take(tiers_.updated_bytes(unit, part), wait);
    staged.wait.push_back(tiers_.reload(part, unit, -1, *at, wait));
  }
  return staged;
}

int Gradients::update(int unit, Staged staged) {
  const bool on_host = updates_on_host(unit);
  Instruction in = draft_.make(Op::update, on_host ? Lane::host : Lane::compute, unit, -1);
  in.bytes = sizes_.layout(unit).grad_partition * kElement;
  in.slot = staged.parameters, in.grad = staged.gradients, in.scratch = staged.states;
  in.wait = std::move(staged.wait);
  sum_over_tensors(in);
  take_work(in);
  if (on_host) {  // it changes the buffers in place: after the fetches of them so far; later ones wait for it
    if (const int read = tiers_.fetched(unit); read >= 0) in.wait.push_back(read);
    if (draft_.norm >= 0) in.wait.push_back(draft_.norm);
    tiers_.await_write(in, Part::gradients);
    const int64_t work = in.host;
    const int at = draft_.add(std::move(in));
    if (work >= 0) draft_.host.give(work, at);
    for (const Part part : {Part::gradients, Part::states}) tiers_.written(unit, part) = at;
    return tiers_.written(unit, Part::parameters) = gather_partitions(unit, -1, at);
  }
  const int64_t work = in.target;
  const int at = draft_.add(std::move(in)), whole = gather_partitions(unit, staged.parameters, at);
  if (work >= 0) draft_.arena.give(work, at);
  Flight flight;
  if (staged.gradients >= 0) flight.push_back({staged.gradients, at});
  if (staged.parameters >= 0)
    flight.push_back({staged.parameters, tiers_.offload(Part::parameters, unit, -1, staged.parameters, {whole})});
  if (staged.states >= 0)
    flight.push_back({staged.states, tiers_.offload(Part::states, unit, -1, staged.states, {at})});
  std::deque<Flight>& flights = plan_.update == Update::in_backward ? draft_.update_flights : draft_.flights;
  if (!flight.empty()) flights.push_back(std::move(flight));
  return whole;
}

/// Takes the memory of an update of whole matrices, where it runs.
void Gradients::take_work(Instruction& in) const {
  const std::vector<MatrixParts>& parts = sizes_.matrices(in.unit);
  in.work = work_bytes(model_.units[in.unit], parts, plan_.states.matrices);
  in.flops = static_cast<int64_t>(own_flops(model_.units[in.unit], parts, plan_.states.iterations));
  if (in.work == 0) return;
  if (in.lane == Lane::host)
    in.host = draft_.host.take(round_up(in.work, kPage), in.wait);
  else
    in.target = draft_.arena.take(in.work, in.wait);
}

/// Declares the sums over tensors of an update, and the messages of its whole matrices ([Note: sums over tensors] and
/// [Note: whole matrices] of net/unit_update.h).
void Gradients::sum_over_tensors(Instruction& in) const {
  for (int round = 0; round < row(plan_.states.optimizer).rounds; ++round)
    for (const Buffer& buffer : sizes_.layout(in.unit).buffers) {
      const GroupName& group = draft_.group_name(in.lane == Lane::host ? kHostSums : kSums, sum_axes(plan_, buffer));
      const int64_t count = sums(plan_, model_.units[in.unit], buffer, round);
      if (!group.axis.empty() && count > 0) in.comm.push_back({group.axis, kAllReduce, count * kElement, group.name});
    }
  const std::vector<MatrixParts>& matrices = sizes_.matrices(in.unit);
  for (size_t b = 0; b < matrices.size(); ++b) {
    if (matrices[b].members == 1) continue;
    const GroupName& group = draft_.group_name(in.lane == Lane::host ? kHostMatrices : kMatrices,
                                               sum_axes(plan_, sizes_.layout(in.unit).buffers[b]));
    for (const int64_t elements : {matrices[b].sent(), matrices[b].returned()})
      in.comm.push_back({group.axis, kAllToAll, elements * size_of(plan_.states.matrices), group.name});
  }
  if (!in.comm.empty()) in.group = in.comm.front().group;
}

/// All-gathers the partitions that the replicas updated; nothing without partitions. Returns the instruction after
/// which the parameter shard is complete. `parameters`: arena offset, -1 if in place.
int Gradients::gather_partitions(int unit, int64_t parameters, int update) {
  if (!sizes_.layout(unit).partitioned()) return update;
  Instruction in = draft_.make(Op::gather_outer, Lane::gather, unit, -1);
  const int64_t element = master_bytes(plan_.states.masters);
  in.bytes = sizes_.layout(unit).grad_shard * element;
  in.slot = parameters;
  in.wait = {update};
  for (const Buffer& buffer : sizes_.layout(unit).buffers) {
    if (!buffer.trainable) continue;
    const GroupName& group = draft_.group_name("gather_outer", plan_.outer_axes(buffer));
    in.comm.push_back({group.axis, kAllGather, buffer.partition() * element * (buffer.partitions - 1), group.name});
  }
  in.group = in.comm.front().group;
  return draft_.add(std::move(in));
}

int Gradients::updated(int unit) const {
  const auto found = updated_.find(unit);
  return found == updated_.end() ? -1 : found->second;
}

}  // namespace tessera::plan
