// Buffers that are offloaded to the host or to disk, and gradients that are stored in 16 bits. Between steps a buffer
// on disk is mapped memory; within a step it is read and written past the page cache.
#include <algorithm>
#include <array>
#include <cstring>

#include "tessera/base/check.h"
#include "tessera/engine/store/store.h"
#include "tessera/ops/half.h"
#include "tessera/ops/host.h"
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
    add(unit.plan.states, plan::state_layout(unit.spec, unit.layout, unit.held, plan::adamw_states(plan.states)).bytes);
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

void Store::move(const plan::Instruction& in, char* host) {
  Unit& unit = units_[in.unit];
  const auto [tensor, extent] = in.part == plan::Part::parameters  ? std::pair(unit.param, unit.param_extent)
                                : in.part == plan::Part::gradients ? std::pair(unit.grad, unit.grad_extent)
                                                                   : std::pair(unit.buffer, unit.states_extent);
  const bool fetch = in.op == plan::Op::fetch;
  check_internal(static_cast<int64_t>(tensor.nbytes()) == in.bytes, "engine.store",
                 unit.spec.name + ": the schedule moves " + std::to_string(in.bytes) + " bytes of " +
                     std::string(name(in.part)) + ", there are " + std::to_string(tensor.nbytes()));
  if (in.lane == plan::Lane::disk) {
    fetch ? disk_->read(extent, host, in.bytes) : disk_->write(extent, host, in.bytes);
    return;
  }
  void* stored = host ? host : ops::host_pointer<void>(tensor);
  void* device = ops::host_pointer<void>(arena(in.slot, 1));
  if (in.part == plan::Part::gradients && grad_type_ != at::kFloat) {  // see [Note: gradients in fewer bits]
    if (!fetch) return ops::narrow(stored, static_cast<const float*>(device), grad_type_, tensor.numel());
    if (in.micro >= 0) return ops::widen(static_cast<float*>(device), stored, grad_type_, tensor.numel());
  }
  fetch ? std::memcpy(device, stored, in.bytes) : std::memcpy(stored, device, in.bytes);
}

Tensor Store::grad_at(int u, int64_t offset) {
  return offset < 0 ? units_[u].grad : arena(offset, units_[u].layout.grad_shard);
}

void Store::round_gradient(const Tensor& shard) const {
  if (grad_type_ == at::kFloat) return;
  constexpr int64_t kBlock = 4096;  // small enough that both forms stay in the cache
  std::array<uint16_t, kBlock> rounded;
  auto* values = ops::host_pointer<float>(shard);
  for (int64_t first = 0; first < shard.numel(); first += kBlock) {
    const int64_t count = std::min(kBlock, shard.numel() - first);
    ops::narrow(rounded.data(), values + first, grad_type_, count);
    ops::widen(values + first, rounded.data(), grad_type_, count);
  }
}

int64_t Store::host_bytes() const {
  int64_t bytes = 0;
  for (const auto& memory : host_) bytes += memory->size();
  return bytes;
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
