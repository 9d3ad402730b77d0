// Buffers that are offloaded to the host or to disk, and gradients that are stored in 16 bits. Between steps a buffer
// on disk is mapped memory; within a step it is read and written past the page cache.
#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/engine/store/store.h"
#include "tessera/ops/ranges.h"
#include "tessera/plan/nvme.h"

namespace tessera::engine {

void Store::open_disk(const plan::Plan& plan, const plan::DiskPlace& place, bool trainable) {
  if (device_.is_meta()) return;
  constexpr int64_t kPage = 4096;
  int64_t bytes = 0;
  const auto experts = static_cast<int64_t>(inactive_.size());
  // of the active expert and of the inactive ones
  const auto add = [&](plan::Tier tier, int64_t size) {
    const int64_t pages = round_up(size, kPage);
    if (tier == plan::Tier::nvme) bytes += pages;
    if (plan.inactive_tier(tier) == plan::Tier::nvme) bytes += experts * pages;
  };
  for (const Unit& unit : units_) {
    if (!unit.owned) continue;
    add(unit.plan.parameters, plan::shard_bytes(unit.layout, masters_));
    if (!trainable) continue;
    if (unit.plan.gradients == plan::Tier::nvme) bytes += round_up(plan.gradient_bytes(unit.layout), kPage);
    add(unit.plan.states, plan::state_layout(unit.spec, unit.layout, unit.held, plan::states_of(plan.states)).bytes);
  }
  if (bytes == 0) return;
  plan::require_nvme_folder(place.folder, "the plan puts buffers on nvme");
  disk_ = std::make_unique<Disk>(place, bytes);
}

Tensor Store::make_buffer(int64_t count, at::ScalarType type, plan::Tier tier, engine::Part part, int64_t& extent) {
  const auto options = at::TensorOptions().dtype(type).device(device_);
  if (tier == plan::Tier::device || device_.is_meta() || count == 0) {
    const Meter::Scope scope(part);
    return at::zeros({count}, options);
  }
  const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(type));
  const auto host = options.device(at::kCPU);
  if (tier == plan::Tier::host) {
    host_.push_back(std::make_unique<HostMemory>());
    host_.back()->reserve(bytes);  // mapped memory is zero
    return at::from_blob(host_.back()->at(0), {count}, host);
  }
  extent = disk_->reserve(bytes);
  return at::from_blob(disk_->map(extent, bytes), {count}, host);  // reserved disk space reads as zeros
}

Tensor Store::make_parameters(int u, int expert, plan::Tier tier, int64_t& extent) {
  const int64_t bytes = plan::shard_bytes(units_[u].layout, masters_);
  // not an expert's that a swap writes: its tier while it is active is not the host
  const bool rests = units_[u].plan.parameters == plan::Tier::host;
  HostMemory* memory = shared_ && rests ? shared_->memory(u, expert) : nullptr;
  if (memory) return at::from_blob(memory->at(0), {bytes}, at::TensorOptions(at::kByte));
  return make_buffer(bytes, at::kByte, tier, engine::Part::parameters, extent);
}

void Store::begin_fill() {
  if (shared_) shared_->begin_fill();
}

void Store::await_fill() {
  if (shared_) shared_->end_fill();
}

bool Store::shares(const Part& part) const {
  return shared_ && !layout(part.unit).buffers[part.buffer].trainable && !shared_->sharers(part.unit).empty();
}

bool Store::fills(const Part& part) const { return !shares(part) || shared_->fills(part.unit); }

bool Store::counts_filled(const Part& part) const {
  return fills(part) && is_primary(part.unit, part.buffer, shares(part) ? shared_->sharers(part.unit).front() : rank_);
}

void Store::move(const plan::Instruction& in, char* host) {
  Unit& unit = units_[in.unit];
  auto [tensor, extent] = in.part == plan::Part::parameters  ? std::pair(unit.param, unit.param_extent)
                          : in.part == plan::Part::gradients ? std::pair(unit.grad, unit.grad_extent)
                                                             : std::pair(unit.buffer, unit.states_extent);
  const bool fetch = in.op == plan::Op::fetch;
  // of an update: what it leaves alone stays where it is
  if (const int64_t trained = plan::trained_shard_bytes(unit.layout, masters_);
      in.part == plan::Part::parameters && in.bytes == trained)
    tensor = tensor.narrow(0, 0, trained);
  check_internal(static_cast<int64_t>(tensor.nbytes()) == in.bytes, "engine.store",
                 unit.spec.name + ": the schedule moves " + std::to_string(in.bytes) + " bytes of " +
                     std::string(name(in.part)) + ", there are " + std::to_string(tensor.nbytes()));
  if (in.lane == plan::Lane::disk) {
    device::host_uses(host, in.bytes, fetch);
    fetch ? disk_->read(extent, host, in.bytes) : disk_->write(extent, host, in.bytes);
    return;
  }
  const Tensor stored = host ? at::from_blob(host, tensor.sizes(), tensor.options().device(at::kCPU)) : tensor;
  if (in.part == plan::Part::gradients && grad_type_ != at::kFloat && (!fetch || in.micro >= 0))
    return move_gradient(arena(in.slot, tensor.numel()), stored, fetch);  // see [Note: gradients in fewer bits]
  const Tensor here = arena(in.slot, div_up(in.bytes, int64_t{4})).view(at::kByte).narrow(0, 0, in.bytes);
  fetch ? ops::enqueue_copy(here, stored) : ops::enqueue_copy(stored, here);
}

/// Between an fp32 gradient in the arena and its 16-bit form in host memory. What a device sends or gets is in 16 bits
/// too: a piece at a time, through memory of its own.
void Store::move_gradient(const Tensor& values, const Tensor& stored, bool fetch) {
  if (!ops::on_device(values)) return fetch ? ops::widen(values, stored) : ops::narrow(stored, values);
  constexpr int64_t kPiece = 1 << 20;
  const Tensor piece = ops::device_scratch(0, kPiece, grad_type_);
  for (int64_t first = 0; first < values.numel(); first += kPiece) {
    const int64_t count = std::min(kPiece, values.numel() - first);
    const Tensor there = stored.narrow(0, first, count), here = values.narrow(0, first, count),
                 rounded = piece.narrow(0, 0, count);
    if (fetch) {
      ops::enqueue_copy(rounded, there);
      ops::widen(here, rounded);
    } else {
      ops::narrow(rounded, here);
      ops::enqueue_copy(there, rounded);
    }
  }
}

/// Between schedules the host reads and writes what is offloaded; within one its instructions say what they use.
void Store::settle(const Tensor& buffer) {
  if (!after_ || !buffer.defined() || !buffer.is_cpu()) return;
  if (!settled_) after_->await();
  settled_ = true;
  device::host_uses(buffer.const_data_ptr(), static_cast<int64_t>(buffer.nbytes()), /*writes=*/true);
}

Tensor Store::grad_at(int u, int64_t offset) {
  return offset < 0 ? units_[u].grad : arena(offset, units_[u].layout.grad_shard);
}

void Store::round_gradient(const Tensor& shard) const {
  if (grad_type_ != at::kFloat) ops::round_values(shard, grad_type_);
}

void Store::flush_disk() {
  if (disk_) disk_->flush();
}

int64_t Store::host_bytes() const {
  int64_t bytes = 0;
  for (const auto& memory : host_) bytes += memory->size();
  return bytes + (shared_ ? shared_->counted_bytes() : 0);
}

int64_t Store::disk_bytes() const {
  int64_t bytes = 0;
  const auto add = [&](const Tensor& tensor, int64_t extent) {
    if (extent >= 0) bytes += static_cast<int64_t>(tensor.nbytes());
  };
  for (const Unit& unit : units_) {
    add(unit.param, unit.param_extent);
    add(unit.grad, unit.grad_extent);
    add(unit.buffer, unit.states_extent);
    for (const Unit::Inactive& inactive : unit.inactive)
      add(inactive.param, inactive.param_extent), add(inactive.buffer, inactive.states_extent);
  }
  return bytes;
}

}  // namespace tessera::engine
