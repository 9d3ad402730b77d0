// Buffers on host or disk: one copy for each hop, each on its own lane.
//
// [Note: gradients in bf16] Gradients stored in bf16 (Plan::grad) take the same path even on the device. In the arena
// they are fp32; their stash rounds them, and the unit's norm before it rounds them too, so that it is the norm of the
// stored values. A fetch before another micro-batch's sum (micro >= 0) widens them to fp32; an update reads the bf16
// values. On the device the reduce lane does both, because reductions wait there.
#include "tessera/base/check.h"
#include "tessera/plan/compile/compiler.h"

namespace tessera::plan {

Tiers::Tiers(Draft& draft) : Concern(draft), written_(draft.model.units.size()) {
  for (auto& parts : written_) parts.fill(-1);
}

Tier Tiers::tier(int unit, Part part) const {
  const UnitPlan& plan = plan_.units[unit];
  switch (part) {
    case Part::parameters:
      return plan.parameters;
    case Part::gradients:
      return plan.gradients;
    case Part::states:
      return plan.states;
    default:
      throw InternalError("plan.compile", "activations have no tier of their own");
  }
}

int64_t Tiers::bytes(int unit, Part part) const {
  if (part == Part::states) return sizes_.state_bytes(unit);
  if (part == Part::parameters) return shard_bytes(sizes_.layout(unit), plan_.states.masters);
  return plan_.gradient_bytes(sizes_.layout(unit));
}

/// Of the buffer what an update fetches and stashes. Frozen parameters stay where they are, but for those on disk, whose
/// checksums are of whole buffers.
int64_t Tiers::updated_bytes(int unit, Part part) const {
  if (part != Part::parameters || tier(unit, part) != Tier::host) return bytes(unit, part);
  return trained_shard_bytes(sizes_.layout(unit), plan_.states.masters);
}

void Tiers::await_write(Instruction& in, Part part) {
  if (const int last = written(in.unit, part); last >= 0) in.wait.push_back(last);
}

/// Copies the buffer to arena offset `at` after `wait`, for an update (`micro` < 0) what that changes. Returns the instruction after which it is there.
int Tiers::reload(Part part, int unit, int micro, int64_t at, Waits wait) {
  Instruction in = draft_.make(Op::fetch, tier(unit, part) == Tier::device ? Lane::reduce : Lane::h2d, unit, micro,
                               part, micro < 0 ? updated_bytes(unit, part) : bytes(unit, part), std::move(wait));
  in.slot = at;
  if (tier(unit, part) == Tier::nvme) {
    Instruction read = draft_.make(Op::fetch, Lane::disk, unit, micro, part, in.bytes);
    read.host = in.host = draft_.host.take(round_up(in.bytes, kPage), read.wait);
    await_write(read, part);
    in.wait.push_back(draft_.add(std::move(read)));
  }
  await_write(in, part);
  const int64_t host = in.host;
  const int last = draft_.add(std::move(in));
  if (part == Part::parameters) fetched_[unit] = last;
  if (host >= 0) hold_bounce_buffer(host, last);
  return last;
}

/// Copies the buffer from arena offset `at` to its placement. Returns the instruction after which the arena range is
/// free.
int Tiers::offload(Part part, int unit, int micro, int64_t at, Waits wait) {
  const bool here = tier(unit, part) == Tier::device;
  Instruction in = draft_.make(Op::stash, here ? Lane::reduce : Lane::d2h, unit, micro, part, updated_bytes(unit, part),
                               std::move(wait));
  in.slot = at;
  // A rank without samples may be here before its host update of the last step's gradient is done.
  if (tier(unit, part) != Tier::nvme) {
    await_write(in, part);
    const int sent = written(unit, part) = draft_.add(std::move(in));
    if (here) draft_.last_reduce = {sent};
    return sent;
  }
  in.host = draft_.host.take(round_up(in.bytes, kPage), in.wait);
  Instruction write = draft_.make(Op::stash, Lane::disk, unit, micro, part, in.bytes);
  write.host = in.host;
  const int last = draft_.add(std::move(in));
  write.wait = {last};
  const int64_t host = write.host;
  const int done = draft_.add(std::move(write));
  hold_bounce_buffer(host, done);
  written(unit, part) = done;
  return last;
}

/// Frees a bounce buffer between device and disk after `last`. The compiler frees it one transfer later, so that one
/// lane fills a buffer while the other empties the previous one.
void Tiers::hold_bounce_buffer(int64_t host, int last) {
  bounce_buffers_.push_back({host, last});
  release_bounce_buffers(plan_.prefetch == 0 ? 0 : 1);
}

void Tiers::release_bounce_buffers(size_t bound) {
  for (; bounce_buffers_.size() > bound; bounce_buffers_.pop_front())
    draft_.host.give(bounce_buffers_.front().at, bounce_buffers_.front().last);
}

int Tiers::fetched(int unit) const {
  const auto found = fetched_.find(unit);
  return found == fetched_.end() ? -1 : found->second;
}

}  // namespace tessera::plan
