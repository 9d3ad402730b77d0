#include "tessera/plan/order/accesses.h"

#include "tessera/plan/states.h"

namespace tessera::plan {

namespace {

Access bytes_of(Memory memory, int64_t at, int64_t bytes, bool writes) { return {memory, at, at + bytes, writes}; }
Access arena(int64_t at, int64_t bytes, bool writes) { return bytes_of(Memory::arena, at, bytes, writes); }

Memory placement(Part part) {
  return part == Part::parameters ? Memory::parameters : part == Part::gradients ? Memory::gradients : Memory::states;
}

constexpr int64_t kFloat = 4;  ///< bytes of a gradient's value in the arena

}  // namespace

AccessWalk::AccessWalk(const ModelSpec& model, const Plan& plan, int rank)
    : model_(model), plan_(plan), count_(static_cast<int>(model.units.size())), shared_(model.units.size()) {
  const StatesOf states = states_of(plan.states);
  for (int u = 0; u < count_; ++u) {
    if (plan.owns(rank, u)) own_.push_back(u);
    const UnitLayout& layout = layouts_.emplace_back(plan.layout(model.units[u], u));
    parameter_bytes_.push_back(shard_bytes(layout, plan.states.masters));
    trained_bytes_.push_back(trained_shard_bytes(layout, plan.states.masters));
    state_bytes_.push_back(state_layout(model.units[u], layout, plan.held(layout, rank), states).bytes);
  }
}

Effects AccessWalk::run(const Instruction& in) {
  Effects effects;
  Uses& uses = effects.accesses;
  effects.takes = touches_activations(in) || takes_memory(in);
  switch (in.op) {
    case Op::gather:
      gather(in, uses);
      break;
    case Op::release:  // tests fill a released slot with NaN
      if (in.slot >= 0) uses.push_back(arena(in.slot, layouts_[in.unit].total * kFloat, true));
      break;
    case Op::idle:
    case Op::weight_grad:
      gradient(in, uses);
      break;
    case Op::reduce:
      uses = {arena(in.grad, in.bytes, true), arena(in.scratch, in.bytes, true), summed_gradient(in)};
      break;
    case Op::reduce_outer:
      uses = {summed_gradient(in)};
      if (in.scratch >= 0) uses.push_back(arena(in.scratch, in.bytes, true));
      break;
    case Op::gather_outer:
      uses = {in.slot < 0 ? shard(Memory::parameters, in.unit, true) : arena(in.slot, trained_bytes_[in.unit], true)};
      break;
    case Op::norm:
      norm(in, uses);
      break;
    case Op::update:
      update(in, uses);
      break;
    case Op::stash:
    case Op::fetch:
      in.part == Part::activations ? move_activations(in, uses) : move(in, uses);
      break;
    case Op::drop:
      if (in.part == Part::activations) effects.frees = {block(Memory::saved, in.unit, in.micro, false)};
      for (const int wait : in.wait)
        if (const auto sent = sent_.find(wait); sent != sent_.end()) effects.frees.push_back(sent->second);
      break;
    case Op::send:
      uses = {in.lane == Lane::send_next ? block(Memory::outputs, in.unit - 1, in.micro, false)
                                         : block(Memory::output_gradients, in.unit, in.micro, false)};
      sent_[next_] = uses.front();
      break;
    case Op::recv:
      uses = {in.lane == Lane::recv_prev ? block(Memory::outputs, in.unit - 1, in.micro, true)
                                         : block(Memory::output_gradients, in.unit, in.micro, true)};
      break;
    case Op::flush:  // a schedule of its own
      break;
    default:
      compute(in, effects);
  }
  ++next_;
  return effects;
}

Access AccessWalk::block(Memory memory, int unit, int micro, bool writes) const {
  const int64_t at = static_cast<int64_t>(micro) * count_ + unit;
  return {memory, at, at + 1, writes};
}

/// The parameters that a unit computes with: in its slot, or in place.
Access AccessWalk::parameters(const Instruction& in) const {
  return in.slot < 0 ? shard(Memory::parameters, in.unit, false)
                     : arena(in.slot, layouts_[in.unit].total * kFloat, false);
}

void AccessWalk::gather(const Instruction& in, Uses& uses) const {
  if (in.slot < 0) return;  // used in place
  uses.push_back(arena(in.slot, in.bytes, true));
  const bool inside = in.scratch >= in.slot && in.scratch < in.slot + in.bytes;
  if (in.scratch < 0)
    uses.push_back(shard(Memory::parameters, in.unit, false));
  else if (!inside)
    uses.push_back(arena(in.scratch, parameter_bytes_[in.unit], false));
}

/// The gradient that a backward writes: into its slot, or in place. None without bytes.
void AccessWalk::gradient(const Instruction& in, Uses& uses) const {
  if (in.bytes == 0) return;
  uses.push_back(in.grad < 0 ? shard(Memory::gradients, in.unit, true) : arena(in.grad, in.bytes, true));
}

/// This rank's shard of a sum over ranks.
Access AccessWalk::summed_gradient(const Instruction& in) const {
  return in.target < 0 ? shard(Memory::gradients, in.unit, true)
                       : arena(in.target, layouts_[in.unit].grad_shard * kFloat, true);
}

void AccessWalk::norm(const Instruction& in, Uses& uses) {
  if (in.unit >= 0) {
    shared_[in.unit] = true;
    uses = {summed_gradient(in), shard(Memory::norms, in.unit, true)};
    return;
  }
  for (const int u : own_)
    if (layouts_[u].grad_total > 0) uses.push_back(shard(shared_[u] ? Memory::norms : Memory::gradients, u, false));
  // Updates in the backward come before the norm: they know their control from the start.
  if (plan_.update != Update::in_backward) uses.push_back({Memory::control, 0, 1, true});
}

void AccessWalk::update(const Instruction& in, Uses& uses) const {
  const bool in_arena = plan_.update == Update::in_backward;  // the gradient, as its reduction left it
  const auto use = [&](Memory memory, int64_t at, int64_t bytes, bool writes) {
    if (bytes > 0) uses.push_back(at < 0 ? shard(memory, in.unit, writes) : arena(at, bytes, writes));
  };
  const UnitLayout& layout = layouts_[in.unit];
  use(Memory::parameters, in.slot, trained_bytes_[in.unit], true);
  use(Memory::gradients, in.grad, in_arena ? layout.grad_shard * kFloat : plan_.gradient_bytes(layout), false);
  use(Memory::states, in.scratch, state_bytes_[in.unit], true);
  uses.push_back({Memory::control, 0, 1, false});
}

/// One hop of a buffer between arena, host memory and its placement.
void AccessWalk::move(const Instruction& in, Uses& uses) const {
  const bool stash = in.op == Op::stash, disk = in.lane == Lane::disk;
  // [Note: gradients in bf16] of compile/tiers.cpp
  const bool wide = in.part == Part::gradients && (stash || in.micro >= 0);
  const Access device = arena(in.slot, wide ? layouts_[in.unit].grad_shard * kFloat : in.bytes, !stash),
               hop = bytes_of(Memory::host, in.host, in.bytes, stash != disk),
               placed = shard(placement(in.part), in.unit, stash);
  uses = {disk || in.host < 0 ? placed : hop, disk ? hop : device};
}

void AccessWalk::move_activations(const Instruction& in, Uses& uses) const {
  const bool stash = in.op == Op::stash, disk = in.lane == Lane::disk;
  uses = {bytes_of(Memory::host, in.host, in.bytes, stash != disk),
          disk ? bytes_of(Memory::disk, in.slot, in.bytes, stash) : block(Memory::saved, in.unit, in.micro, !stash)};
}

/// Operations of the compute lane on a unit's activations.
void AccessWalk::compute(const Instruction& in, Effects& effects) const {
  const auto add = [&](Memory memory, int unit, bool writes) {
    if (unit >= 0) effects.accesses.push_back(block(memory, unit, in.micro, writes));
  };
  switch (in.op) {
    case Op::forward:
      effects.accesses.push_back(parameters(in));
      add(Memory::outputs, in.unit - 1, false);
      add(Memory::outputs, in.unit, true);
      add(Memory::saved, in.unit, true);
      break;
    case Op::compress:
    case Op::expand:
      add(Memory::saved, in.unit, true);
      break;
    case Op::loss:
      add(Memory::outputs, count_ - 1, false);
      add(Memory::output_gradients, count_ - 1, true);
      break;
    case Op::finish:
      add(Memory::outputs, count_ - 1, false);
      break;
    case Op::recompute:
      effects.accesses.push_back(parameters(in));
      add(Memory::outputs, in.unit - 1, false);
      add(Memory::saved, in.unit, false);
      break;
    case Op::backward:
      effects.accesses.push_back(parameters(in));
      gradient(in, effects.accesses);
      add(Memory::outputs, in.unit - 1, false);
      add(Memory::saved, in.unit, false);
      add(Memory::output_gradients, in.unit, false);
      add(Memory::output_gradients, in.unit - 1, true);
      break;
    default:
      break;
  }
}

std::string AccessWalk::describe(const Access& access) const {
  const auto unit = [&] { return model_.units[access.begin % count_].name; };
  const auto micro = [&] { return " of micro-batch " + std::to_string(access.begin / count_); };
  const auto range = [&](const char* name) {
    return name + (" [" + std::to_string(access.begin)) + ", " + std::to_string(access.end) + ")";
  };
  switch (access.memory) {
    case Memory::arena:
      return range("arena");
    case Memory::host:
      return range("host memory");
    case Memory::disk:
      return range("disk");
    case Memory::parameters:
      return "the parameters of " + unit();
    case Memory::gradients:
      return "the gradient of " + unit();
    case Memory::states:
      return "the states of " + unit();
    case Memory::saved:
      return "what " + unit() + " saved" + micro();
    case Memory::outputs:
      return "the output of " + unit() + micro();
    case Memory::output_gradients:
      return "the gradient of " + unit() + "'s output" + micro();
    case Memory::norms:
      return "the norm of " + unit();
    case Memory::control:
      return "what the norm decides";
  }
  return {};
}

}  // namespace tessera::plan
