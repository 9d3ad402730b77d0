// The order of visits: when parameters are gathered and how long they stay gathered.
#include "tessera/base/check.h"
#include "tessera/plan/compile/compiler.h"
#include "tessera/plan/compile/traffic.h"

namespace tessera::plan {

/// For each visit the next one that uses the same unit's parameters, or -1.
std::vector<int> Compiler::next_uses(const std::vector<Visit>& visits) const {
  std::vector<int> next(visits.size(), -1), later(model_.units.size(), -1);
  for (size_t v = visits.size(); v-- > 0;) {
    int& unit = later[static_cast<size_t>(visits[v].unit)];
    next[v] = unit;
    if (!visits[v].weights) unit = static_cast<int>(v);
  }
  return next;
}

/// Whether the parameters of the unit that visit `v` uses stay gathered until its `next` one.
bool Compiler::stays_gathered(const Visit& visit, int v, int next) const {
  if (next < 0) return false;
  // A slot that would be filled again at once is kept: releasing it would free nothing.
  return plan_.units[visit.unit].stays_gathered() || next - v <= plan_.prefetch + 1;
}

bool Compiler::is_dummy(int micro) const { return !forward_only_ && plan_.slice(dp_rank_, micro).count == 0; }

void Compiler::walk(const std::vector<Visit>& visits) {
  const int count = static_cast<int>(visits.size());
  const std::vector<int> next = next_uses(visits);
  std::vector<bool> needs_gather(count, true), stays(count, false);
  for (int v = 0; v < count; ++v) {
    if (visits[v].weights)
      needs_gather[v] = false;
    else if ((stays[v] = stays_gathered(visits[v], v, next[v])))
      needs_gather[next[v]] = false;
  }
  int issued = 0, read = 0;
  for (int v = 0; v < count; ++v) {
    apply_pending_updates(visits, v);
    for (; read < count && read <= v + plan_.prefetch + 1; ++read)  // the disk read before the copy to the device
      if (!visits[read].forward) read_back(visits[read]);
    for (; issued < count && issued <= v + plan_.prefetch; ++issued) {
      if (needs_gather[issued]) gather(visits[issued].unit, visits[issued].micro);
      if (!visits[issued].forward) fetch(visits[issued]);
    }
    if (!visits[v].forward) fetch(visits[v]);  // if its forward was too late to fetch ahead
    if (begins_act(visits, v)) receive_for(visits, v);
    const std::optional<int> backward = run(visits[v]);
    if (!visits[v].weights && !stays[v]) release(visits[v].unit, visits[v].micro);
    // after the release, so that the receive buffer may reuse the slot's bytes
    if (backward) reduce(visits[v], *backward);
  }
  run_due_updates(0);
  retire(update_flights_, 0);
  retire(0);
  for (const Lane lane : {Lane::send_next, Lane::send_prev}) drop_sent(lane);
  release_bounce_buffers(0);
  check_internal(arena_.empty() && host_.empty() && disk_.empty(), "plan.compile",
                 "a slot is still taken at the end of the schedule");
}

void Compiler::gather(int unit, int micro) {
  Instruction in = make(Op::gather, Lane::gather, unit, micro);
  if (const auto updated = updated_.find(unit); updated != updated_.end()) in.wait = {updated->second};
  const UnitLayout& layout = sizes_.layout(unit);
  in.bytes = layout.total * kElement;
  in.frozen = in.bytes - layout.trained_bytes;
  const bool narrow = plan_.gathered() != DType::f32;
  const bool offloaded = tier(unit, Part::parameters) != Tier::device;
  // else the shard is read in place
  if (layout.sharded || narrow || offloaded) in.slot = arena_.take(in.bytes, in.wait);
  // A shard is copied directly to its place in the slot, unless it is widened or there are several buffers.
  const bool direct = !narrow && layout.buffers.size() == 1 && layout.buffers[0].stored == DType::f32;
  if (offloaded) {
    const int64_t shard = bytes(unit, Part::parameters);
    Waits wait;
    if (direct) {
      in.scratch = in.slot + plan_.shard_rank(layout.buffers[0], rank_) * shard;
      arena_.last_users(in.scratch, shard, wait);
    } else {
      in.scratch = arena_.take(shard, wait);
    }
    in.wait.push_back(reload(Part::parameters, unit, micro, in.scratch, wait));
  }
  collect(in, "gather", kAllGather, Gathered::all, size_of(plan_.gathered()));
  const int64_t slot = in.slot, scratch = in.scratch;
  const int at = add(std::move(in));
  if (offloaded && !direct) arena_.give(scratch, at);
  resident_[unit] = {at, slot};
}

void Compiler::release(int unit, int micro) {
  Instruction in = make(Op::release, Lane::compute, unit, micro);
  in.slot = resident_[unit].slot;
  in.wait = {resident_[unit].gather};
  const int64_t slot = in.slot;
  const int at = add(std::move(in));
  if (slot >= 0) arena_.give(slot, at);
}

Instruction Compiler::use(Op op, const Visit& visit) const {
  Instruction in = make(op, Lane::compute, visit.unit, visit.micro);
  in.slot = resident_[visit.unit].slot;
  in.wait = {resident_[visit.unit].gather};
  declare(in, traffic_of(model_.units[visit.unit], plan_.units[visit.unit], op));
  return in;
}

/// The instruction that uses a micro-batch's prediction: the loss, or the result joined from all ranks that share it.
Instruction Compiler::output(int micro) const {
  Instruction in = make(forward_only_ ? Op::finish : Op::loss, Lane::compute, -1, micro);
  if (forward_only_ && model_.sequence > 0) declare(in, {prediction_traffic(model_.prediction_row, plan_.mesh)});
  return in;
}

/// Emits the compute of a visit. Returns the instruction that filled the gradient slot if it has to be reduced.
std::optional<int> Compiler::run(const Visit& visit) {
  if (!visit.forward) return backward(visit);
  if (is_dummy(visit.micro)) return std::nullopt;
  Instruction in = use(Op::forward, visit);
  await_message(in, visit);
  const int forward = add(std::move(in));
  if (!forward_only_) stash(visit, compress(visit, forward));
  send_result(visit, forward);
  const bool pipeline = plan_.mesh[Axis::pp] > 1;
  if (visit.unit + 1 == static_cast<int>(model_.units.size()) && !(forward_only_ && pipeline)) add(output(visit.micro));
  return std::nullopt;
}

}  // namespace tessera::plan
