// Buffers that rest on the host or on disk: a copy for each hop on the way, each on its own lane.
//
// [Note: gradients in fewer bits] Where gradients rest in 16 bits (Plan::grad) they go the same way even where they
// rest on the device: in the arena they are fp32, their stash rounds them, and so does the norm of the unit before it,
// which is that of what rests. The fetch ahead of another micro-batch's sum (micro >= 0) widens them; an update reads
// the 16 bits. On the device both are done by the lane that reduces, which is where sums are waited for.
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
  if (part == Part::states) return state_bytes_[unit];
  if (part == Part::parameters) return shard_bytes(layouts_[unit], plan_.states.masters);
  return plan_.gradient_bytes(layouts_[unit]);
}

/// Copies the buffer to the arena at `at`, after `wait`. Gives the instruction after which it is there.
int Compiler::bring(Part part, int unit, int micro, int64_t at, std::vector<int> wait) {
  Instruction in = make(Op::fetch, tier(unit, part) == Tier::device ? Lane::reduce : Lane::h2d, unit, micro);
  in.part = part;
  in.bytes = bytes(unit, part);
  in.slot = at;
  in.wait = std::move(wait);
  if (tier(unit, part) == Tier::nvme) {
    Instruction read = make(Op::fetch, Lane::disk, unit, micro);
    read.part = part;
    read.bytes = in.bytes;
    read.host = in.host = host_.take(round_up(in.bytes, kPage), read.wait);
    if (const auto it = written_.find({unit, part}); it != written_.end()) read.wait.push_back(it->second);
    in.wait.push_back(add(std::move(read)));
  }
  if (const auto it = written_.find({unit, part}); it != written_.end()) in.wait.push_back(it->second);
  const int64_t host = in.host;
  const int last = add(std::move(in));
  if (host >= 0) pass_through(host, last);
  return last;
}

/// Copies the arena at `at` back to where the buffer rests. Gives the instruction after which the arena is free.
int Compiler::send(Part part, int unit, int micro, int64_t at, std::vector<int> wait) {
  const bool here = tier(unit, part) == Tier::device;
  Instruction in = make(Op::stash, here ? Lane::reduce : Lane::d2h, unit, micro);
  in.part = part;
  in.bytes = bytes(unit, part);
  in.slot = at;
  in.wait = std::move(wait);
  if (tier(unit, part) != Tier::nvme) {
    const int sent = written_[{unit, part}] = add(std::move(in));
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
  pass_through(host, done);
  written_[{unit, part}] = done;
  return last;
}

/// Host memory on the way between device and disk is free when `last` is done. It is taken again one transfer later,
/// so that one lane fills a buffer while the other empties the one before.
void Compiler::pass_through(int64_t host, int last) {
  passing_.push_back({host, last});
  end_passing(plan_.prefetch == 0 ? 0 : 1);
}

void Compiler::end_passing(size_t bound) {
  for (; passing_.size() > bound; passing_.pop_front()) host_.give(passing_.front().at, passing_.front().last);
}

}  // namespace tessera::plan
