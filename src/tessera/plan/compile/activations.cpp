// Activation offload: activations are copied to the host after the forward, freed on the device at least one visit
// later when the copy is done (memory_order.cpp), and reloaded before the backward. Activations on disk pass through a
// host buffer and are read one visit before their copy to the device. Quantised activations are quantised first.
#include <utility>

#include "tessera/plan/compile/compiler.h"
#include "tessera/plan/compile/saved_bytes.h"

namespace tessera::plan {

/// Quantises what the forward saved. Returns the instruction after which the quantised copy exists.
int Compiler::compress(const Visit& visit, int forward) {
  const Compressed compressed = compressed_bytes(on(visit.micro), plan_, visit.unit);
  if (compressed.whole == 0) return forward;
  Instruction in = make(Op::compress, Lane::compute, visit.unit, visit.micro);
  in.part = Part::activations;
  in.bytes = compressed.bytes();
  in.wait = {forward};
  return add(std::move(in));
}

/// Dequantises before the recompute or backward.
void Compiler::expand(const Visit& visit) {
  const Compressed compressed = compressed_bytes(on(visit.micro), plan_, visit.unit);
  if (compressed.whole == 0) return;
  Instruction in = make(Op::expand, Lane::compute, visit.unit, visit.micro);
  in.part = Part::activations;
  in.bytes = compressed.bytes();
  if (const Offloaded* saved = offloaded(visit.unit, visit.micro)) in.wait = {saved->fetch};
  add(std::move(in));
}

void Compiler::stash(const Visit& visit, int forward) {
  drop_all();  // the copy of the previous forward's activations overlapped this forward
  const int64_t bytes = bytes_to_offload(visit);
  if (bytes == 0) return;
  Instruction in = make(Op::stash, Lane::d2h, visit.unit, visit.micro);
  in.part = Part::activations;
  in.bytes = bytes;
  in.wait = {forward};
  in.host = host_.take(round_up(bytes, kPage), in.wait);
  if (offloaded_.empty()) offloaded_.resize(model_.units.size() * static_cast<size_t>(schedule_.micros));
  Offloaded& offloaded = offloaded_[place(visit.unit, visit.micro)];
  offloaded.bytes = bytes, offloaded.host = in.host;
  offloaded.stash = add(std::move(in));
  if (plan_.units[visit.unit].offload_to == Tier::nvme) {
    Instruction write = make(Op::stash, Lane::disk, visit.unit, visit.micro);
    write.part = Part::activations;
    write.bytes = bytes;
    write.host = offloaded.host;
    write.wait = {offloaded.stash};
    write.slot = offloaded.disk = disk_.take(round_up(bytes, kPage), write.wait);
    offloaded.write = add(std::move(write));
    hold_bounce_buffer(std::exchange(offloaded.host, -1), offloaded.write);
  }
  undropped_.emplace_back(visit.unit, visit.micro);
  if (plan_.prefetch == 0) drop_all();
}

/// As offloaded_bytes has it, which is asked once for all micro-batches of as many samples.
int64_t Compiler::bytes_to_offload(const Visit& visit) {
  const ModelSpec& model = on(visit.micro);
  std::vector<int64_t>& known = to_offload_[&model];
  if (known.empty()) known.assign(model.units.size(), -1);
  int64_t& bytes = known[static_cast<size_t>(visit.unit)];
  if (bytes < 0) bytes = offloaded_bytes(model, plan_, visit.unit);
  return bytes;
}

Compiler::Offloaded* Compiler::offloaded(int unit, int micro) {
  Offloaded* found = offloaded_.empty() ? nullptr : &offloaded_[place(unit, micro)];
  return found && found->bytes > 0 ? found : nullptr;
}

void Compiler::drop(int unit, int micro) {
  Offloaded& offloaded = offloaded_[place(unit, micro)];
  Instruction in = make(Op::drop, Lane::compute, unit, micro);
  in.part = Part::activations;
  in.bytes = offloaded.bytes;
  in.wait = {offloaded.stash};
  add(std::move(in));
  offloaded.dropped = true;
}

void Compiler::drop_all() {
  for (const auto& [unit, micro] : undropped_) drop(unit, micro);
  undropped_.clear();
}

/// Reads activations that the visit's backward needs from disk into host memory, if they are on disk.
void Compiler::read_back(const Visit& visit) {
  Offloaded* found = offloaded(visit.unit, visit.micro);
  if (!found || found->write < 0 || found->read >= 0) return;
  Offloaded& offloaded = *found;
  if (!offloaded.dropped) drop_all();
  Instruction in = make(Op::fetch, Lane::disk, visit.unit, visit.micro);
  in.part = Part::activations;
  in.bytes = offloaded.bytes;
  in.slot = offloaded.disk;
  in.wait = {offloaded.write};
  in.host = offloaded.host = host_.take(round_up(offloaded.bytes, kPage), in.wait);
  offloaded.read = add(std::move(in));
  disk_.give(offloaded.disk, offloaded.read);
}

/// Reloads activations that the visit's backward needs, once, if they were offloaded.
void Compiler::fetch(const Visit& visit) {
  Offloaded* found = offloaded(visit.unit, visit.micro);
  if (!found || found->fetch >= 0) return;
  Offloaded& offloaded = *found;
  read_back(visit);
  if (!offloaded.dropped) drop_all();
  Instruction in = make(Op::fetch, Lane::h2d, visit.unit, visit.micro);
  in.part = Part::activations;
  in.bytes = offloaded.bytes;
  in.host = offloaded.host;
  in.wait = {offloaded.read >= 0 ? offloaded.read : offloaded.stash};
  offloaded.fetch = add(std::move(in));
  host_.give(offloaded.host, offloaded.fetch);
}

}  // namespace tessera::plan
