// Activations on the host tier: copied there behind the forward, freed on the device one visit later or more
// (late_drops.cpp), when the copy is done, and brought back ahead of the backward. On the disk's tier they go on
// through a buffer on the host, and are read one visit ahead of their way to the device. What is compressed goes into
// fewer bits before all that, at once.
#include <utility>

#include "tessera/plan/compile/compiler.h"
#include "tessera/plan/compile/saved_bytes.h"

namespace tessera::plan {

/// Puts what the forward saved into fewer bits. Gives the instruction after which it is there.
int Compiler::compress(const Visit& visit, int forward) {
  const Compressed compressed = compressed_bytes(model_, plan_, visit.unit);
  if (compressed.whole == 0) return forward;
  Instruction in = make(Op::compress, Lane::compute, visit.unit, visit.micro);
  in.part = Part::activations;
  in.bytes = compressed.bytes();
  in.wait = {forward};
  return add(std::move(in));
}

/// The reverse, ahead of the recompute or backward.
void Compiler::expand(const Visit& visit) {
  const Compressed compressed = compressed_bytes(model_, plan_, visit.unit);
  if (compressed.whole == 0) return;
  Instruction in = make(Op::expand, Lane::compute, visit.unit, visit.micro);
  in.part = Part::activations;
  in.bytes = compressed.bytes();
  if (const auto away = away_.find({visit.unit, visit.micro}); away != away_.end()) in.wait = {away->second.fetch};
  add(std::move(in));
}

void Compiler::stash(const Visit& visit, int forward) {
  drop_all();  // what the forward before left: its copy had this forward's time
  const int64_t bytes = offloaded_bytes(model_, plan_, visit.unit);
  if (bytes == 0) return;
  Instruction in = make(Op::stash, Lane::d2h, visit.unit, visit.micro);
  in.part = Part::activations;
  in.bytes = bytes;
  in.wait = {forward};
  in.host = host_.take(round_up(bytes, kPage), in.wait);
  Away& away = away_[{visit.unit, visit.micro}];
  away.bytes = bytes, away.host = in.host;
  away.stash = add(std::move(in));
  if (plan_.units[visit.unit].offload_to == Tier::nvme) {
    Instruction write = make(Op::stash, Lane::disk, visit.unit, visit.micro);
    write.part = Part::activations;
    write.bytes = bytes;
    write.host = away.host;
    write.wait = {away.stash};
    write.slot = away.disk = disk_.take(round_up(bytes, kPage), write.wait);
    away.write = add(std::move(write));
    pass_through(std::exchange(away.host, -1), away.write);
  }
  undropped_.emplace_back(visit.unit, visit.micro);
  if (plan_.prefetch == 0) drop_all();
}

void Compiler::drop(int unit, int micro) {
  Away& away = away_.at({unit, micro});
  Instruction in = make(Op::drop, Lane::compute, unit, micro);
  in.part = Part::activations;
  in.bytes = away.bytes;
  in.wait = {away.stash};
  add(std::move(in));
  away.dropped = true;
}

void Compiler::drop_all() {
  for (const auto& [unit, micro] : std::exchange(undropped_, {})) drop(unit, micro);
}

/// Reads what the visit's backward needs from the disk into host memory, when it has gone there.
void Compiler::read_back(const Visit& visit) {
  const auto found = away_.find({visit.unit, visit.micro});
  if (found == away_.end() || found->second.write < 0 || found->second.read >= 0) return;
  Away& away = found->second;
  if (!away.dropped) drop_all();
  Instruction in = make(Op::fetch, Lane::disk, visit.unit, visit.micro);
  in.part = Part::activations;
  in.bytes = away.bytes;
  in.slot = away.disk;
  in.wait = {away.write};
  in.host = away.host = host_.take(round_up(away.bytes, kPage), in.wait);
  away.read = add(std::move(in));
  disk_.give(away.disk, away.read);
}

/// Brings back what the visit's backward needs, once, when it has left.
void Compiler::fetch(const Visit& visit) {
  const auto found = away_.find({visit.unit, visit.micro});
  if (found == away_.end() || found->second.fetch >= 0) return;
  Away& away = found->second;
  read_back(visit);
  if (!away.dropped) drop_all();
  Instruction in = make(Op::fetch, Lane::h2d, visit.unit, visit.micro);
  in.part = Part::activations;
  in.bytes = away.bytes;
  in.host = away.host;
  in.wait = {away.read >= 0 ? away.read : away.stash};
  away.fetch = add(std::move(in));
  host_.give(away.host, away.fetch);
}

}  // namespace tessera::plan
