// Activation offload: activations are copied to the host after the forward, freed on the device at least one visit
// later when the copy is done (memory_order.cpp), and reloaded before the backward. Activations on disk pass through a
// host buffer and are read one visit before their copy to the device. Quantised activations are quantised first.
#include <utility>

#include "tessera/plan/compile/compiler.h"
#include "tessera/plan/compile/memory.h"

namespace tessera::plan {

/// Quantises what the forward saved. Returns the instruction after which the quantised copy exists.
int Activations::compress(const UnitVisit& visit, int forward) {
  const Compressed compressed = compressed_bytes(draft_.on(visit.micro), plan_, visit.unit);
  if (compressed.whole == 0) return forward;
  Instruction in = draft_.make(Op::compress, Lane::compute, visit.unit, visit.micro, Part::activations,
                               compressed.bytes(), {forward});
  return draft_.add(std::move(in));
}

/// Dequantises before the recompute or backward.
void Activations::expand(const UnitVisit& visit) {
  const Compressed compressed = compressed_bytes(draft_.on(visit.micro), plan_, visit.unit);
  if (compressed.whole == 0) return;
  Instruction in =
      draft_.make(Op::expand, Lane::compute, visit.unit, visit.micro, Part::activations, compressed.bytes());
  if (const int back = fetched(visit); back >= 0) in.wait = {back};
  draft_.add(std::move(in));
}

void Activations::stash(const UnitVisit& visit, int forward) {
  drop_all();  // the copy of the previous forward's activations overlapped this forward
  const int64_t bytes = bytes_to_offload(visit);
  if (bytes == 0) return;
  Instruction in = draft_.make(Op::stash, Lane::d2h, visit.unit, visit.micro, Part::activations, bytes, {forward});
  in.host = draft_.host.take(round_up(bytes, kPage), in.wait);
  if (offloaded_.empty()) offloaded_.resize(model_.units.size() * static_cast<size_t>(draft_.schedule.micros));
  Offloaded& offloaded = offloaded_[place(visit.unit, visit.micro)];
  offloaded.bytes = bytes, offloaded.host = in.host;
  offloaded.stash = draft_.add(std::move(in));
  if (plan_.units[visit.unit].offload_to == Tier::nvme) {
    Instruction write =
        draft_.make(Op::stash, Lane::disk, visit.unit, visit.micro, Part::activations, bytes, {offloaded.stash});
    write.host = offloaded.host;
    write.slot = offloaded.disk = draft_.disk.take(round_up(bytes, kPage), write.wait);
    offloaded.write = draft_.add(std::move(write));
    tiers_.hold_bounce_buffer(std::exchange(offloaded.host, -1), offloaded.write);
  }
  undropped_.emplace_back(visit.unit, visit.micro);
  if (plan_.prefetch == 0) drop_all();
}

/// As offloaded_bytes has it, which is asked once for all micro-batches of as many samples.
int64_t Activations::bytes_to_offload(const UnitVisit& visit) {
  const ModelSpec& model = draft_.on(visit.micro);
  std::vector<int64_t>& known = to_offload_[&model];
  if (known.empty()) known.assign(model.units.size(), -1);
  int64_t& bytes = known[static_cast<size_t>(visit.unit)];
  if (bytes < 0) bytes = offloaded_bytes(model, plan_, visit.unit);
  return bytes;
}

Activations::Offloaded* Activations::offloaded(const UnitVisit& visit) {
  Offloaded* found = offloaded_.empty() ? nullptr : &offloaded_[place(visit.unit, visit.micro)];
  return found && found->bytes > 0 ? found : nullptr;
}

int Activations::fetched(const UnitVisit& visit) {
  const Offloaded* saved = offloaded(visit);
  return saved ? saved->fetch : -1;
}

void Activations::drop_all() {
  for (const auto& [unit, micro] : std::exchange(undropped_, {})) {
    Offloaded& offloaded = offloaded_[place(unit, micro)];
    draft_.add(
        draft_.make(Op::drop, Lane::compute, unit, micro, Part::activations, offloaded.bytes, {offloaded.stash}));
    offloaded.dropped = true;
  }
}

/// Reads activations that the visit's backward needs from disk into host memory, if they are on disk.
void Activations::read_back(const UnitVisit& visit) {
  Offloaded* found = offloaded(visit);
  if (!found || found->write < 0 || found->read >= 0) return;
  Offloaded& offloaded = *found;
  if (!offloaded.dropped) drop_all();
  Instruction in = draft_.make(Op::fetch, Lane::disk, visit.unit, visit.micro, Part::activations, offloaded.bytes,
                               {offloaded.write});
  in.slot = offloaded.disk;
  in.host = offloaded.host = draft_.host.take(round_up(offloaded.bytes, kPage), in.wait);
  offloaded.read = draft_.add(std::move(in));
  draft_.disk.give(offloaded.disk, offloaded.read);
}

/// Reloads activations that the visit's backward needs, once, if they were offloaded.
void Activations::fetch(const UnitVisit& visit) {
  Offloaded* found = offloaded(visit);
  if (!found || found->fetch >= 0) return;
  Offloaded& offloaded = *found;
  read_back(visit);
  if (!offloaded.dropped) drop_all();
  Instruction in = draft_.make(Op::fetch, Lane::h2d, visit.unit, visit.micro, Part::activations, offloaded.bytes,
                               {offloaded.read >= 0 ? offloaded.read : offloaded.stash});
  in.host = offloaded.host;
  offloaded.fetch = draft_.add(std::move(in));
  draft_.host.give(offloaded.host, offloaded.fetch);
}

}  // namespace tessera::plan
