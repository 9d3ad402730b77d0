// Gradients: written into a slot of the arena and reduced into shards, or written where they stay; then the norm.
#include "tessera/plan/compile/compiler.h"

namespace tessera::plan {

std::optional<int> Compiler::backward(const Visit& visit) {
  const UnitPlan& unit = plan_.units[visit.unit];
  // a unit of which nothing is trained only passes gradients on
  const bool trained = layouts_[visit.unit].grad_total > 0, sharded = trained && layouts_[visit.unit].sharded;
  const bool nothing = idle(visit.micro), rests_elsewhere = trained && gradient_leaves(visit.unit);
  const bool last_micro = visit.micro + 1 == schedule_.micros;
  const auto away = away_.find({visit.unit, visit.micro});
  const auto need = [&](Instruction in) {
    if (away != away_.end()) in.wait.push_back(away->second.fetch);
    return in;
  };
  const bool later = plan_.pipeline.schedule == PipelineSchedule::zero_bubble;
  if (!nothing && !visit.weights) expand(visit);
  if (!nothing && !visit.weights && unit.recomputes()) add(need(use(Op::recompute, visit)));
  if (later && !visit.weights) {
    if (nothing) return std::nullopt;
    Instruction in = need(use(Op::backward, visit));
    await_message(in, visit);
    pass_on(visit, add(std::move(in)));
    return std::nullopt;
  }
  Instruction in = nothing         ? make(Op::idle, Lane::compute, visit.unit, visit.micro)
                   : visit.weights ? make(Op::weight_grad, Lane::compute, visit.unit, visit.micro)
                                   : need(use(Op::backward, visit));
  in.bytes = layouts_[visit.unit].grad_total * kElement;
  in.add = trained && visit.micro > 0 && (!sharded || unit.reduces_once());
  if (sharded && unit.reduces_once() && visit.micro > 0) {
    in.grad = whole_gradients_.at(visit.unit);
  } else if (sharded || rests_elsewhere) {
    // Slots in flight are bounded, so that a reduction overlaps the next backward and no more: the oldest is given back
    // (and waited for) when a new one is needed.
    land(1);
    in.grad = arena_.take(in.bytes, in.wait);
    if (in.add) in.wait.push_back(bring(Part::gradients, visit.unit, visit.micro, in.grad, in.wait));
  }
  const int64_t grad = in.grad;
  if (!nothing && !visit.weights) await_message(in, visit);
  const int at = add(std::move(in));
  if (!nothing && !visit.weights) pass_on(visit, at);
  if (!sharded) {
    last_backward_ = {at};  // a whole gradient is written where it stays
    if (trained) {
      Flight flight;
      if (const auto use = pass_gradient(visit, grad, at, flight)) flight.push_back(*use);
      if (!flight.empty()) flights_.push_back(std::move(flight));
    }
    if (plan_.prefetch == 0) land(0);
    return std::nullopt;
  }
  if (!unit.reduces_once()) return at;
  whole_gradients_[visit.unit] = grad;
  return last_micro ? std::optional(at) : std::nullopt;
}

void Compiler::reduce(const Visit& visit, int backward) {
  const UnitLayout& layout = layouts_[visit.unit];
  const bool rests_elsewhere = gradient_leaves(visit.unit);
  Instruction in = make(Op::reduce, Lane::reduce, visit.unit, visit.micro);
  in.bytes = layout.grad_total * kElement;
  in.grad = schedule_.list[backward].grad;
  in.wait = {backward};
  in.scratch = arena_.take(in.bytes, in.wait);
  in.add = visit.micro > 0 && !plan_.units[visit.unit].reduces_once();
  collect(in, "reduce", "reduce_scatter", Gathered::trained, size_of(plan_.reduce));
  if (rests_elsewhere) {
    std::vector<int> wait;
    in.target = arena_.take(layout.grad_shard * kElement, wait);
    if (in.add) wait = {bring(Part::gradients, visit.unit, visit.micro, in.target, wait)};
    in.wait.insert(in.wait.end(), wait.begin(), wait.end());
  }
  const int64_t grad = in.grad, scratch = in.scratch, target = in.target;
  const int at = add(std::move(in));
  last_reduce_ = {at};
  Flight flight = {{grad, at}, {scratch, at}};
  if (const auto use = pass_gradient(visit, target, at, flight)) flight.push_back(*use);
  flights_.push_back(std::move(flight));
  if (plan_.prefetch == 0) land(0);
}

/// Whether the reduced gradient lies in the arena before it goes on: to another tier, into fewer bits, or into an
/// update right away.
bool Compiler::gradient_leaves(int unit) const {
  return plan_.units[unit].gradients != Tier::device || plan_.rounds_gradients() ||
         plan_.transient_gradient(layouts_[unit], unit);
}

/// What becomes of a micro-batch's gradient, summed by `last` at `target` of the arena or (-1) where it stays. Gives
/// what of the arena is still in use, and until when; what else was taken joins `flight`.
std::optional<Compiler::Use> Compiler::pass_gradient(const Visit& visit, int64_t target, int last, Flight& flight) {
  const int unit = visit.unit;
  const bool whole = visit.micro + 1 == schedule_.micros;
  const bool in_backward = whole && plan_.update == Update::in_backward, on_host = updates_on_host(unit);
  if (target < 0 && !in_backward) return std::nullopt;  // those that stay are settled together, ahead of the norm
  if (whole) last = settle(unit, target, last, flight);
  if (in_backward && !on_host) {
    update_behind(unit, target, last);
    return std::nullopt;
  }
  const Use use{target, send(Part::gradients, unit, visit.micro, target, {last})};
  if (in_backward) update(unit, {});
  return use;
}

/// Emits a reduce_outer, none when there is nobody to sum with. Its receive buffer, which pieces need, joins `flight`.
std::optional<int> Compiler::add_outer(Instruction in, Flight& flight) {
  if (in.comm.empty()) return std::nullopt;
  if (layouts_[in.unit].in_pieces()) in.scratch = arena_.take(in.bytes, in.wait);
  const int64_t scratch = in.scratch;
  const int at = add(std::move(in));
  if (scratch >= 0) flight.push_back({scratch, at});
  last_reduce_ = {at};
  return at;
}

/// What is left to do with a step's whole gradient shard before it leaves the arena: the sum over replicas, and its
/// share of the norm, for which it is rounded to what it will rest as. Gives the last instruction.
int Compiler::settle(int unit, int64_t target, int last, Flight& flight) {
  Instruction in = make(Op::reduce_outer, Lane::reduce, unit, -1);
  sum_over_replicas(in, unit);
  in.target = target;
  in.wait = {last};
  last = add_outer(std::move(in), flight).value_or(last);
  Instruction norm = make(Op::norm, Lane::reduce, unit, -1);
  norm.bytes = layouts_[unit].grad_piece * kElement;
  norm.target = target;
  norm.wait = {last};
  last = add(std::move(norm));
  last_reduce_ = {last};
  return last;
}

/// Gives back what the oldest reductions and updates used, until at most `bound` of them are in flight.
void Compiler::land(std::deque<Flight>& flights, size_t bound) {
  for (; flights.size() > bound; flights.pop_front())
    for (const Use& use : flights.front()) arena_.give(use.at, use.last);
}

/// The step's gradients are whole, and their norm is taken.
void Compiler::norm() {
  for (size_t i = own_.size(); i-- > 0;) {
    const int u = own_[i];
    if (layouts_[u].grad_total == 0) continue;
    Instruction in = make(Op::reduce_outer, Lane::reduce, u, -1);
    sum_over_replicas(in, u);
    if (in.comm.empty() || gradient_leaves(u) || plan_.update == Update::in_backward) continue;
    in.wait = layouts_[u].sharded ? last_reduce_ : last_backward_;
    if (layouts_[u].in_pieces()) land(plan_.prefetch == 0 ? 0 : 1);
    Flight flight;
    add_outer(std::move(in), flight);
    if (!flight.empty()) flights_.push_back(std::move(flight));
  }
  Instruction norm = make(Op::norm, Lane::compute, -1, -1);
  norm.wait = last_reduce_;
  norm.wait.insert(norm.wait.end(), last_backward_.begin(), last_backward_.end());
  norm.group = world_.name;
  if (!world_.axis.empty()) norm.comm = {{world_.axis, "all_gather", kControlBytes, world_.name}};
  norm_ = add(std::move(norm));
}

}  // namespace tessera::plan
