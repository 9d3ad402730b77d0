// Gradients: written into a slot of the arena and reduced into shards, or written where they stay; then norm and
// update.
#include "tessera/plan/compile/compiler.h"

namespace tessera::plan {

std::optional<int> Compiler::backward(const Visit& visit) {
  const UnitPlan& unit = plan_.units[visit.unit];
  // a unit of which nothing is trained only passes gradients on
  const bool trained = layouts_[visit.unit].grad_total > 0, sharded = trained && layouts_[visit.unit].sharded;
  const bool nothing = idle(visit.micro), rests_elsewhere = trained && unit.gradients != Tier::device;
  const bool last_micro = visit.micro + 1 == schedule_.micros;
  const auto away = away_.find({visit.unit, visit.micro});
  const auto need = [&](Instruction in) {
    if (away != away_.end()) in.wait.push_back(away->second.fetch);
    return in;
  };
  const bool later = plan_.pipeline.schedule == PipelineSchedule::zero_bubble;
  if (!nothing && !visit.weights) expand(visit);
  if (!nothing && !visit.weights && unit.activations == Policy::recompute) add(need(use(Op::recompute, visit)));
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
    if (!rests_elsewhere) return std::nullopt;
    const int done = last_micro ? settle(visit.unit, visit.micro, grad, at) : at;
    flights_.push_back({{grad, send(Part::gradients, visit.unit, visit.micro, grad, {done})}});
    if (plan_.prefetch == 0) land(0);
    return std::nullopt;
  }
  if (!unit.reduces_once()) return at;
  whole_gradients_[visit.unit] = grad;
  return last_micro ? std::optional(at) : std::nullopt;
}

void Compiler::reduce(const Visit& visit, int backward) {
  const UnitLayout& layout = layouts_[visit.unit];
  const bool rests_elsewhere = plan_.units[visit.unit].gradients != Tier::device;
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
  if (rests_elsewhere) {
    const int done = visit.micro + 1 == schedule_.micros ? settle(visit.unit, visit.micro, target, at) : at;
    flight.push_back({target, send(Part::gradients, visit.unit, visit.micro, target, {done})});
  }
  flights_.push_back(std::move(flight));
  if (plan_.prefetch == 0) land(0);
}

/// What is left to do with a step's whole gradient shard before it leaves the device: the sum over replicas, and its
/// share of the norm. Gives the last instruction.
int Compiler::settle(int unit, int micro, int64_t target, int last) {
  Instruction in = make(Op::reduce_outer, Lane::reduce, unit, -1);
  sum_over_replicas(in, unit);
  if (!in.comm.empty()) {
    in.target = target;
    in.wait = {last};
    last = add(std::move(in));
    last_reduce_ = {last};
  }
  Instruction norm = make(Op::norm, Lane::reduce, unit, -1);
  norm.bytes = layouts_[unit].grad_shard * kElement;
  norm.target = target;
  norm.wait = {last};
  last = add(std::move(norm));
  last_reduce_ = {last};
  return last;
}

/// Gives back what the oldest reductions and updates used, until at most `bound` of them are in flight.
void Compiler::land(size_t bound) {
  while (flights_.size() > bound) {
    for (const Use& use : flights_.front()) arena_.give(use.at, use.last);
    flights_.pop_front();
  }
}

void Compiler::optimise() {
  for (size_t i = own_.size(); i-- > 0;) {
    const int u = own_[i];
    if (layouts_[u].grad_total == 0) continue;
    Instruction in = make(Op::reduce_outer, Lane::reduce, u, -1);
    sum_over_replicas(in, u);
    if (in.comm.empty() || plan_.units[u].gradients != Tier::device) continue;
    in.wait = layouts_[u].sharded ? last_reduce_ : last_backward_;
    last_reduce_ = {add(std::move(in))};
  }
  Instruction norm = make(Op::norm, Lane::compute, -1, -1);
  norm.wait = last_reduce_;
  norm.wait.insert(norm.wait.end(), last_backward_.begin(), last_backward_.end());
  norm.group = world_.name;
  if (!world_.axis.empty()) norm.comm = {{world_.axis, "all_gather", kControlBytes, world_.name}};
  add(std::move(norm));
  // What the update of a unit needs is brought while those before it run.
  std::deque<Staged> staged;
  size_t issued = 0;
  std::vector<int> trained;
  for (const int u : own_)
    if (layouts_[u].grad_total > 0) trained.push_back(u);
  for (size_t i = 0; i < trained.size(); ++i) {
    for (; issued < trained.size() && issued <= i + plan_.prefetch; ++issued) staged.push_back(stage(trained[issued]));
    update(trained[i], std::move(staged.front()));
    staged.pop_front();
    land(plan_.prefetch == 0 ? 0 : 1);
  }
  land(0);
}

/// Brings the buffers of an update that rest elsewhere.
Compiler::Staged Compiler::stage(int unit) {
  Staged staged;
  for (const auto& [part, at] : {std::pair(Part::parameters, &staged.parameters),
                                 {Part::gradients, &staged.gradients},
                                 {Part::states, &staged.states}}) {
    if (tier(unit, part) == Tier::device || bytes(unit, part) == 0) continue;
    std::vector<int> wait;
    *at = arena_.take(bytes(unit, part), wait);
    staged.wait.push_back(bring(part, unit, -1, *at, wait));
  }
  return staged;
}

void Compiler::update(int unit, Staged staged) {
  Instruction in = make(Op::update, Lane::compute, unit, -1);
  in.bytes = layouts_[unit].grad_shard * kElement;
  in.slot = staged.parameters, in.grad = staged.gradients, in.scratch = staged.states;
  in.wait = std::move(staged.wait);
  const int at = add(std::move(in));
  Flight flight;
  if (staged.gradients >= 0) flight.push_back({staged.gradients, at});
  for (const auto& [part, place] : {std::pair(Part::parameters, staged.parameters), {Part::states, staged.states}})
    if (place >= 0) flight.push_back({place, send(part, unit, -1, place, {at})});
  if (!flight.empty()) flights_.push_back(std::move(flight));
}

}  // namespace tessera::plan
