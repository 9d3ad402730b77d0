// The order of visits: what is gathered when, and how long it stays.
#include "tessera/base/check.h"
#include "tessera/plan/compile/compiler.h"

namespace tessera::plan {

/// Visit of the same unit after `v`, or -1.
int Compiler::next_visit(const std::vector<Visit>& visits, int v) const {
  for (size_t w = v + 1; w < visits.size(); ++w)
    if (visits[w].unit == visits[v].unit) return static_cast<int>(w);
  return -1;
}

/// Whether the unit's parameters stay gathered until its next visit.
bool Compiler::stays(const std::vector<Visit>& visits, int v) const {
  const int next = next_visit(visits, v);
  if (next < 0) return false;
  // A slot that would be filled again at once is kept: releasing it would free nothing.
  return plan_.units[visits[v].unit].stays_gathered() || next - v <= plan_.prefetch + 1;
}

bool Compiler::idle(int micro) const { return !forward_only_ && plan_.slice(dp_rank_, micro).count == 0; }

void Compiler::walk(const std::vector<Visit>& visits) {
  const int count = static_cast<int>(visits.size());
  std::vector<bool> needs_gather(count, true);
  for (int v = 0; v < count; ++v)
    if (stays(visits, v)) needs_gather[next_visit(visits, v)] = false;
  int issued = 0;
  for (int v = 0; v < count; ++v) {
    for (; issued < count && issued <= v + plan_.prefetch; ++issued) {
      if (needs_gather[issued]) gather(visits[issued].unit, visits[issued].micro);
      if (!visits[issued].forward) fetch(visits[issued]);
    }
    if (!visits[v].forward) fetch(visits[v]);  // where its forward came too late to fetch ahead
    const std::optional<int> backward = run(visits[v]);
    if (!stays(visits, v)) release(visits[v].unit, visits[v].micro);
    if (backward) reduce(visits[v], *backward);  // after the release: its receive buffer may take the slot's place
  }
  land(0);
  check_internal(arena_.empty() && host_.empty(), "plan.compile", "a slot is still taken at the end of the schedule");
}

void Compiler::gather(int unit, int micro) {
  Instruction in = make(Op::gather, Lane::gather, unit, micro);
  const FlatLayout& layout = layouts_[unit];
  in.bytes = layout.total * kElement;
  const bool narrow = plan_.gathered() == ParamType::bf16;
  const bool away = tier(unit, Part::parameters) != Tier::device;
  if (layout.shards > 1 || narrow || away) in.slot = arena_.take(in.bytes, in.wait);  // else it is read where it lies
  const bool direct =
      !narrow;  // the shard comes to its place in the slot; what is widened there needs a place of its own
  if (away) {
    std::vector<int> wait = in.wait;
    in.scratch = direct ? in.slot + (layout.shards > 1 ? plan_.mesh.shard_rank(rank_) * layout.shard * kElement : 0)
                        : arena_.take(bytes(unit, Part::parameters), wait);
    in.wait.push_back(bring(Part::parameters, unit, micro, in.scratch, wait));
  }
  if (layout.shards > 1) {
    in.group = gather_.name;
    in.comm = {{gather_.axis, "all_gather", layout.shard * (narrow ? 2 : kElement) * (layout.shards - 1)}};
  }
  const int64_t slot = in.slot, scratch = in.scratch;
  const int at = add(std::move(in));
  if (away && !direct) arena_.give(scratch, at);
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
  return in;
}

/// Emits what a visit computes. Gives the instruction that filled the gradient slot, when there is one to reduce.
std::optional<int> Compiler::run(const Visit& visit) {
  if (!visit.forward) return backward(visit);
  if (idle(visit.micro)) return std::nullopt;
  const int forward = add(use(Op::forward, visit));
  if (!forward_only_) stash(visit, forward);
  if (visit.unit + 1 == static_cast<int>(model_.units.size()))
    add(make(forward_only_ ? Op::finish : Op::loss, Lane::compute, -1, visit.micro));
  return std::nullopt;
}

}  // namespace tessera::plan
