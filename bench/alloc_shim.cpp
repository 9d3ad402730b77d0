// An allocator in front of LibTorch's that counts tensor bytes, for programs that are not ours (bench/fsdp2_peer.py
// loads it through ctypes). The rule is engine/meter's: a block counts as its size rounded up to 64 bytes.
//
//   shim = ctypes.CDLL("alloc_shim.so"); shim.shim_install(); ...; shim.shim_peak()
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <unordered_map>

namespace {

constexpr size_t kAlign = 64;

std::mutex mutex;
std::unordered_map<void*, size_t>& blocks() {
  static auto* map = new std::unordered_map<void*, size_t>;  // outlives every tensor
  return *map;
}
size_t live = 0;
size_t peak = 0;

void give(void* data) {
  if (!data) return;
  {
    const std::lock_guard lock(mutex);
    const auto it = blocks().find(data);
    if (it != blocks().end()) {  // else: allocated before we were installed
      live -= it->second;
      blocks().erase(it);
    }
  }
  std::free(data);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &give, c10::Device(c10::kCPU)};
    const size_t size = (bytes + kAlign - 1) / kAlign * kAlign;
    void* data = nullptr;
    if (posix_memalign(&data, kAlign, size) != 0) throw std::bad_alloc();
    const std::lock_guard lock(mutex);
    live += size;
    if (live > peak) peak = live;
    blocks()[data] = size;
    return {data, data, &give, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }
};

}  // namespace

extern "C" {
void shim_install() { c10::SetCPUAllocator(new CountingAllocator, /*priority=*/100); }
size_t shim_live() {
  const std::lock_guard lock(mutex);
  return live;
}
size_t shim_peak() {
  const std::lock_guard lock(mutex);
  return peak;
}
void shim_reset_peak() {
  const std::lock_guard lock(mutex);
  peak = live;
}
}
