#pragma once
// Counts tensor bytes on the CPU and on meta, by allocators in front of LibTorch's.
//
//   ByteCount count(at::kCPU);
//   ... count.peak(), count.live();     // since construction
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <unordered_map>

#include "tessera/ops/tensor.h"

namespace tessera::testing {

struct Bytes {
  int64_t live = 0, peak = 0;
  void add(int64_t bytes) {
    live += bytes;
    peak = std::max(peak, live);
  }
};

class CountingAllocator final : public c10::Allocator {
 public:
  static CountingAllocator& of(at::DeviceType type) {
    static CountingAllocator cpu(at::kCPU), meta(at::kMeta);
    static const bool installed = [] {
      c10::SetCPUAllocator(&cpu, /*priority=*/100);
      c10::SetAllocator(c10::kMeta, &meta, /*priority=*/100);
      return true;
    }();
    (void)installed;
    return type == at::kCPU ? cpu : meta;
  }

  c10::DataPtr allocate(size_t bytes) override {
    const bool cpu = type_ == at::kCPU;
    void* block = nullptr;  // on meta a byte, for its address
    if (bytes) block = cpu ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : std::malloc(1);
    if (block) sizes()[block] = {this, static_cast<int64_t>(bytes)}, count.add(static_cast<int64_t>(bytes));
    return {cpu ? block : nullptr, block, &forget, c10::Device(type_)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return type_ == at::kCPU ? &forget : nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    if (type_ == at::kCPU) default_copy_data(to, from, bytes);
  }

  Bytes count;

 private:
  struct Block {
    CountingAllocator* owner;
    int64_t bytes;
  };
  explicit CountingAllocator(at::DeviceType type) : type_(type) {}
  static std::unordered_map<void*, Block>& sizes() {
    static auto* map = new std::unordered_map<void*, Block>;
    return *map;
  }
  static void forget(void* block) {
    const auto it = sizes().find(block);  // absent: allocated before we were installed
    if (it != sizes().end()) {
      it->second.owner->count.add(-it->second.bytes);
      sizes().erase(it);
    }
    std::free(block);
  }
  at::DeviceType type_;
};

/// One thread allocates while it counts.
class ByteCount {
 public:
  explicit ByteCount(at::DeviceType type) : count_(CountingAllocator::of(type).count), before_(count_.live) {
    count_.peak = before_;
  }
  int64_t live() const { return count_.live - before_; }
  int64_t peak() const { return count_.peak - before_; }

 private:
  Bytes& count_;
  int64_t before_;
};

}  // namespace tessera::testing
