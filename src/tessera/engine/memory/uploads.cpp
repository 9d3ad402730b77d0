#include "tessera/engine/memory/uploads.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tessera::engine {

namespace {

constexpr int64_t kLeast = 64 << 10;

}  // namespace

/// One of at least so many bytes whose last copy is done.
Uploads::Buffer& Uploads::buffer(int64_t bytes) {
  const auto size = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(bytes, kLeast))));
  for (const auto& buffer : buffers_)
    if (buffer->memory.size() == size && buffer->copied.passed()) return *buffer;
  buffers_.push_back(std::make_unique<Buffer>());
  buffers_.back()->memory.reserve(size);
  return *buffers_.back();
}

at::Tensor Uploads::bring(const at::Tensor& here, at::Device device) {
  if (device.is_cpu()) return here;
  const at::Tensor from = here.contiguous(), there = at::empty(from.sizes(), from.options().device(device));
  const auto bytes = static_cast<int64_t>(from.nbytes());
  if (bytes == 0) return there;
  Buffer& by = buffer(bytes);
  device::host_uses(by.memory.at(0), bytes, /*writes=*/true);
  std::memcpy(by.memory.at(0), from.const_data_ptr(), static_cast<size_t>(bytes));
  device::used()->enqueue_copy(there.mutable_data_ptr(), by.memory.at(0), bytes);
  by.copied.record();
  return there;
}

}  // namespace tessera::engine
