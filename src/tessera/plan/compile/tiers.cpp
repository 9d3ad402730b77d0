// Buffers on host or disk: one copy for each hop, each on its own lane.
//
// [Note: gradients in bf16] Gradients stored in bf16 (Plan::grad) take the same path even on the device. In the arena
// they are fp32; their stash rounds them, and the unit's norm before it rounds them too, so that it is the norm of the
// stored values. A fetch before another micro-batch's sum (micro >= 0) widens them to fp32; an update reads the bf16
// values. On the device the reduce lane does both, because reductions wait there.
#include "tessera/base/check.h"
#include "tessera/plan/compile/compiler.h"

namespace tessera::plan {

Tier Compiler::tier(int unit, Part part) const {
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

int64_t Compiler::bytes(int unit, Part part) const {
  if (part == Part::states) return sizes_.state_bytes(unit);
  if (part == Part::parameters) return shard_bytes(sizes_.layout(unit), plan_.states.masters);
  return plan_.gradient_bytes(sizes_.layout(unit));
}

/// Of the buffer what an update fetches and stashes. Frozen parameters stay where they are, but for those on disk, whose
/// checksums are of whole buffers.
int64_t Compiler::updated_bytes(int unit, Part part) const {
  if (part != Part::parameters || tier(unit, part) != Tier::host) return bytes(unit, part);
  return trained_shard_bytes(sizes_.layout(unit), plan_.states.masters);
}

/// Makes the instruction wait for what last wrote this part of its unit to its placement.
void Compiler::await_write(Instruction& in, Part part) {
  if (const int last = written(in.unit, part); last >= 0) in.wait.push_back(last);
}

/// Copies the buffer to arena offset `at` after `wait`, for an update (`micro` < 0) what that changes. Returns the instruction after which it is there.
int Compiler::reload(Part part, int unit, int micro, int64_t at, Waits wait) {
  Instruction in = make(Op::fetch, tier(unit, part) == Tier::device ? Lane::reduce : Lane::h2d, unit, micro);
  in.part = part;
  in.bytes = micro < 0 ? updated_bytes(unit, part) : bytes(unit, part);
  in.slot = at;
  in.wait = std::move(wait);
  if (tier(unit, part) == Tier::nvme) {
    Instruction read = make(Op::fetch, Lane::disk, unit, micro);
    read.part = part;
    read.bytes = in.bytes;
    read.host = in.host = host_.take(round_up(in.bytes, kPage), read.wait);
    await_write(read, part);
    in.wait.push_back(add(std::move(read)));
  }
  await_write(in, part);
  const int64_t host = in.host;
  const int last = add(std::move(in));
  if (part == Part::parameters) fetched_[unit] = last;
  if (host >= 0) hold_bounce_buffer(host, last);
  return last;
}

/// Copies the buffer from arena offset `at` to its placement. Returns the instruction after which the arena range is
/// free.
int Compiler::offload(Part part, int unit, int micro, int64_t at, Waits wait) {
  const bool here = tier(unit, part) == Tier::device;
  Instruction in = make(Op::stash, here ? Lane::reduce : Lane::d2h, unit, micro);
  in.part = part;
  in.bytes = updated_bytes(unit, part);
  in.slot = at;
  in.wait = std::move(wait);
  // A rank without samples may be here before its host update of the last step's gradient is done.
  if (tier(unit, part) != Tier::nvme) {
    await_write(in, part);
    const int sent = written(unit, part) = add(std::move(in));
    if (here) last_reduce_ = {sent};
    return sent;
  }
  in.host = host_.take(round_up(in.bytes, kPage), in.wait);
  Instruction write = make(Op::stash, Lane::disk, unit, micro);
  write.part = part;
  write.bytes = in.bytes;
  write.host = in.host;
  const int last = add(std::move(in));
  write.wait = {last};
  const int64_t host = write.host;
  const int done = add(std::move(write));
  hold_bounce_buffer(host, done);
  written(unit, part) = done;
  return last;
}

/// Frees a bounce buffer between device and disk after `last`. The compiler frees it one transfer later, so that one
/// lane fills a buffer while the other empties the previous one.
void Compiler::hold_bounce_buffer(int64_t host, int last) {
  bounce_buffers_.push_back({host, last});
  release_bounce_buffers(plan_.prefetch == 0 ? 0 : 1);
}

void Compiler::release_bounce_buffers(size_t bound) {
  for (; bounce_buffers_.size() > bound; bounce_buffers_.pop_front())
    host_.give(bounce_buffers_.front().at, bounce_buffers_.front().last);
}

}  // namespace tessera::plan
