#include "tessera/engine/memory/uploads.h"

#include <cstring>

#include "tessera/base/units.h"

namespace tessera::engine {

namespace {

constexpr int64_t kAligned = 64;

}  // namespace

void Uploads::reserve(int64_t bytes) {
  if (bytes <= memory_.size()) return;
  for (const Part& part : under_way_) part.copied.await();
  under_way_.clear();
  memory_.reserve(bytes);
}

/// Where so many bytes go that no copy under way reads: behind the newest part, or at the beginning again.
int64_t Uploads::place(int64_t bytes) {
  if (bytes > memory_.size()) reserve(2 * bytes);
  for (;; under_way_.front().copied.await()) {
    while (!under_way_.empty() && under_way_.front().copied.passed()) under_way_.pop_front();
    if (under_way_.empty()) return 0;
    const int64_t oldest = under_way_.front().begin, next = under_way_.back().end;
    const bool wrapped = next <= oldest;
    if (next + bytes <= (wrapped ? oldest : memory_.size())) return next;
    if (!wrapped && bytes <= oldest) return 0;
  }
}

at::Tensor Uploads::bring(const at::Tensor& here, at::Device device) {
  if (device.is_cpu()) return here;
  const at::Tensor from = here.contiguous(), there = at::empty(from.sizes(), from.options().device(device));
  const auto bytes = static_cast<int64_t>(from.nbytes());
  if (bytes == 0) return there;
  const int64_t size = round_up(bytes, kAligned), at = place(size);
  char* by = memory_.at(at);
  device::host_uses(by, bytes, /*writes=*/true);
  std::memcpy(by, from.const_data_ptr(), static_cast<size_t>(bytes));
  device::used()->enqueue_copy(there.mutable_data_ptr(), by, bytes);
  under_way_.push_back({at, at + size, {}});
  under_way_.back().copied.record();
  return there;
}

}  // namespace tessera::engine
