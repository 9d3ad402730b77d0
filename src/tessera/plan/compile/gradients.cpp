// Gradients: written into an arena slot and reduced into shards, or written in place without shards; then the norm.
#include "tessera/plan/compile/compiler.h"
#include "tessera/plan/optimizers.h"

namespace tessera::plan {

std::optional<int> Compiler::backward(const Visit& visit) {
  const UnitPlan& unit = plan_.units[visit.unit];
  // A unit without trained parameters only passes gradients on.
  const bool trained = sizes_.layout(visit.unit).grad_total > 0, sharded = trained && sizes_.layout(visit.unit).sharded;
  const bool dummy = is_dummy(visit.micro), leaves_arena = trained && gradient_leaves_arena(visit.unit);
  const bool last_micro = visit.micro + 1 == schedule_.micros;
  const Offloaded* saved = offloaded(visit.unit, visit.micro);
  const auto need = [&](Instruction in) {
    if (saved) in.wait.push_back(saved->fetch);
    return in;
  };
  const bool defers_weights = plan_.pipeline.schedule == PipelineSchedule::zero_bubble;
  if (!dummy && !visit.weights) expand(visit);
  if (!dummy && !visit.weights && unit.recomputes()) add(need(use(Op::recompute, visit)));
  if (defers_weights && !visit.weights) {
    if (dummy) return std::nullopt;
    Instruction in = need(use(Op::backward, visit));
    await_message(in, visit);
    send_result(visit, add(std::move(in)));
    return std::nullopt;
  }
  Instruction in = dummy           ? make(Op::idle, Lane::compute, visit.unit, visit.micro)
                   : visit.weights ? make(Op::weight_grad, Lane::compute, visit.unit, visit.micro)
                                   : need(use(Op::backward, visit));
  in.bytes = sizes_.layout(visit.unit).grad_total * kElement;
  in.add = trained && visit.micro > 0 && (!sharded || unit.reduces_once());
  if (sharded && unit.reduces_once() && visit.micro > 0) {
    in.grad = whole_gradients_.at(visit.unit);
  } else if (sharded || leaves_arena) {
    // The number of slots in flight is bounded so that a reduction overlaps only the next backward: a new slot frees
    // the oldest one and waits for it.
    retire(1);
    Waits wait;
    in.grad = arena_.take(in.bytes, wait);
    if (in.add) wait = {reload(Part::gradients, visit.unit, visit.micro, in.grad, wait)};
    in.wait.append(wait);
  }
  const int64_t grad = in.grad;
  if (!dummy && !visit.weights) await_message(in, visit);
  const int at = add(std::move(in));
  if (!dummy && !visit.weights) send_result(visit, at);
  if (!sharded) {
    last_backward_ = {at};  // an unsharded gradient is written in place
    if (trained) {
      Flight flight;
      if (const auto use = route_gradient(visit, grad, at, flight)) flight.push_back(*use);
      if (!flight.empty()) flights_.push_back(std::move(flight));
    }
    if (plan_.prefetch == 0) retire(0);
    return std::nullopt;
  }
  if (!unit.reduces_once()) return at;
  whole_gradients_[visit.unit] = grad;
  return last_micro ? std::optional(at) : std::nullopt;
}

void Compiler::reduce(const Visit& visit, int backward) {
  const UnitLayout& layout = sizes_.layout(visit.unit);
  const bool leaves_arena = gradient_leaves_arena(visit.unit);
  Instruction in = make(Op::reduce, Lane::reduce, visit.unit, visit.micro);
  in.bytes = layout.grad_total * kElement;
  in.grad = schedule_.list[backward].grad;
  in.wait = {backward};
  in.scratch = arena_.take(in.bytes, in.wait);
  in.add = visit.micro > 0 && !plan_.units[visit.unit].reduces_once();
  collect(in, "reduce", kReduceScatter, Gathered::trained, size_of(plan_.reduce));
  if (leaves_arena) {
    Waits wait;
    in.target = arena_.take(layout.grad_shard * kElement, wait);
    if (in.add) wait = {reload(Part::gradients, visit.unit, visit.micro, in.target, wait)};
    in.wait.append(wait);
  }
  const int64_t grad = in.grad, scratch = in.scratch, target = in.target;
  const int at = add(std::move(in));
  last_reduce_ = {at};
  Flight flight = {{grad, at}, {scratch, at}};
  if (const auto use = route_gradient(visit, target, at, flight)) flight.push_back(*use);
  flights_.push_back(std::move(flight));
  if (plan_.prefetch == 0) retire(0);
}

/// Whether the reduced gradient leaves the arena: offloaded, rounded to bf16, or used at once by an update.
bool Compiler::gradient_leaves_arena(int unit) const {
  return plan_.units[unit].gradients != Tier::device || plan_.rounds_gradients() ||
         plan_.transient_gradient(sizes_.layout(unit), unit);
}

/// Handles a micro-batch's gradient after `last` summed it at arena offset `target`, or in place (-1). Returns the
/// arena range still in use and its last user; adds other ranges to `flight`.
std::optional<Compiler::Use> Compiler::route_gradient(const Visit& visit, int64_t target, int last, Flight& flight) {
  const int unit = visit.unit;
  const bool whole = visit.micro + 1 == schedule_.micros;
  const bool in_backward = whole && plan_.update == Update::in_backward, on_host = updates_on_host(unit);
  if (target < 0 && !in_backward) return std::nullopt;  // gradients in place are finalised together before the norm
  if (whole) last = finalise_gradient(unit, target, last, flight);
  if (in_backward && !on_host) {
    queue_update(unit, target, last);
    return std::nullopt;
  }
  const Use use{target, offload(Part::gradients, unit, visit.micro, target, {last})};
  if (in_backward) update(unit, {});
  return use;
}

/// Emits a reduce_outer if there are replicas. Its receive buffer, needed for partitions, is added to `flight`.
std::optional<int> Compiler::add_outer(Instruction in, Flight& flight) {
  if (in.comm.empty()) return std::nullopt;
  if (sizes_.layout(in.unit).partitioned()) in.scratch = arena_.take(in.bytes, in.wait);
  const int64_t scratch = in.scratch;
  const int at = add(std::move(in));
  if (scratch >= 0) flight.push_back({scratch, at});
  last_reduce_ = {at};
  return at;
}

/// Finalises a step's complete gradient shard before it leaves the arena: the sum over replicas and its share of the
/// norm, which rounds it to its storage dtype. Returns the last instruction.
int Compiler::finalise_gradient(int unit, int64_t target, int last, Flight& flight) {
  Instruction in = make(Op::reduce_outer, Lane::reduce, unit, -1);
  sum_over_replicas(in, unit);
  in.target = target;
  in.wait = {last};
  last = add_outer(std::move(in), flight).value_or(last);
  Instruction norm = make(Op::norm, Lane::reduce, unit, -1);
  norm.bytes = sizes_.layout(unit).grad_partition * kElement;
  norm.target = target;
  norm.wait = {last};
  last = add(std::move(norm));
  last_reduce_ = {last};
  return last;
}

/// Frees the ranges of the oldest reductions and updates until at most `bound` of them are in flight.
void Compiler::retire(std::deque<Flight>& flights, size_t bound) {
  for (; flights.size() > bound; flights.pop_front())
    for (const Use& use : flights.front()) arena_.give(use.at, use.last);
}

/// Emits the remaining sums over replicas and the norm over all gradients.
void Compiler::norm() {
  for (size_t i = own_.size(); i-- > 0;) {
    const int u = own_[i];
    if (sizes_.layout(u).grad_total == 0) continue;
    Instruction in = make(Op::reduce_outer, Lane::reduce, u, -1);
    sum_over_replicas(in, u);
    if (in.comm.empty() || gradient_leaves_arena(u) || plan_.update == Update::in_backward) continue;
    in.wait = sizes_.layout(u).sharded ? last_reduce_ : last_backward_;
    if (sizes_.layout(u).partitioned()) retire(plan_.prefetch == 0 ? 0 : 1);
    Flight flight;
    add_outer(std::move(in), flight);
    if (!flight.empty()) flights_.push_back(std::move(flight));
  }
  Instruction norm = make(Op::norm, Lane::compute, -1, -1);
  norm.wait = last_reduce_;
  norm.wait.append(last_backward_);
  if (row(plan_.states.optimizer).distance && plan_.update == Update::in_backward)  // the exchange has their totals
    for (const int u : own_)
      if (const int updated = written(u, Part::parameters); updates_on_host(u) && updated >= 0)
        norm.wait.push_back(updated);
  norm.group = world_.name;
  if (!world_.axis.empty()) norm.comm = {{world_.axis, kAllGather, kControlBytes, world_.name}};
  norm_ = add(std::move(norm));
}

}  // namespace tessera::plan
