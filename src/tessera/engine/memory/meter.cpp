#include "tessera/engine/memory/meter.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/torch_headers.h"

namespace tessera::engine {

namespace {

constexpr size_t kAlign = 64;              // a cache line; what LibTorch's own allocator gives
constexpr size_t kHuge = size_t{4} << 20;  // from here on blocks are aligned for huge pages
constexpr std::array<const char*, kParts> kPartNames = {"parameters", "gradients", "states", "slots",
                                                        "activations and temporaries"};

thread_local Part current_part = Part::compute;

struct Count {
  std::array<int64_t, kParts> live{};
  std::array<int64_t, kParts> at_peak{};
  int64_t total = 0, peak = 0, host = 0;

  void add(Part part, int64_t bytes) {
    if (part == Part::host) {
      host += bytes;
      return;
    }
    live[static_cast<int>(part)] += bytes;
    total += bytes;
    if (total > peak) peak = total, at_peak = live;
  }
  void reset() { peak = total, at_peak = live; }
};

size_t rounded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : take(rounded(bytes));
    return {data, data, &give_raw, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_raw; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }

  void* take(size_t size) {
    const std::lock_guard lock(mutex_);
    if (budget_ > 0 && current_part != Part::host && count_.total + static_cast<int64_t>(size) > budget_)
      throw UserError(
          Exit::memory, "engine.memory",
          "a tensor of " + format_bytes(size) + " would exceed plan.budget " + format_bytes(budget_) + "; " + story(),
          "raise plan.budget, or let the planner recompute more (plan.recompute = \"all\")");
    void* data = nullptr;
    auto& kept = free_[size];
    if (!kept.empty()) {
      data = kept.back();
      kept.pop_back();
      cached_ -= size;
    } else {
      if (cached_ > static_cast<size_t>(std::max<int64_t>(count_.peak, 64 << 20))) trim();
      const size_t align = size >= kHuge ? size_t{2} << 20 : kAlign;
      if (posix_memalign(&data, align, size) != 0)
        throw UserError(Exit::memory, "engine.memory", "the machine has no " + format_bytes(size) + " left; " + story(),
                        "use more ranks, recompute, or a smaller batch");
      if (size >= kHuge) madvise(data, size, MADV_HUGEPAGE);
    }
    count_.add(current_part, size);
    blocks_[data] = {size, current_part};
    return data;
  }

  void give(void* data) {
    const std::lock_guard lock(mutex_);
    const auto it = blocks_.find(data);
    if (it == blocks_.end()) {  // allocated before we were installed
      std::free(data);
      return;
    }
    count_.add(it->second.part, -static_cast<int64_t>(it->second.size));
    free_[it->second.size].push_back(data);
    cached_ += it->second.size;
    blocks_.erase(it);
  }

  std::string story() const {
    std::string text = "held now: ";
    for (int p = 0; p < kParts; ++p)
      text += std::string(p ? ", " : "") + kPartNames[p] + " " + format_bytes(count_.live[p]);
    return text;
  }

  void trim() {
    for (auto& [size, kept] : free_) {
      for (void* data : kept) std::free(data);
      kept.clear();
    }
    cached_ = 0;
  }

  struct Block {
    size_t size;
    Part part;
  };
  mutable std::mutex mutex_;
  Count count_;
  size_t cached_ = 0;
  int64_t budget_ = 0;
  std::unordered_map<void*, Block> blocks_;
  std::map<size_t, std::vector<void*>> free_;

 private:
  static void give_raw(void* data);
};

CountingAllocator& device() {
  static auto* instance = new CountingAllocator;  // outlives every tensor
  return *instance;
}
void CountingAllocator::give_raw(void* data) {
  if (data) device().give(data);
}

Count meta_count;

/// Meta tensors have no memory: their data pointer is null and the context carries the size.
class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &forget, c10::Device(c10::kMeta)};
    auto* size = new int64_t(static_cast<int64_t>(rounded(bytes)));
    meta_count.add(Part::compute, *size);
    return {nullptr, size, &forget, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  static void forget(void* context) {
    if (!context) return;
    auto* size = static_cast<int64_t*>(context);
    meta_count.add(Part::compute, -*size);
    delete size;
  }
};

}  // namespace

void Meter::install() {
  static const bool once = [] {
    c10::SetCPUAllocator(&device(), /*priority=*/100);
    c10::SetAllocator(c10::kMeta, new MetaAllocator, /*priority=*/100);
    return true;
  }();
  (void)once;
}

int64_t Meter::live() {
  const std::lock_guard lock(device().mutex_);
  return device().count_.total;
}
int64_t Meter::live(Part part) {
  const std::lock_guard lock(device().mutex_);
  return part == Part::host ? device().count_.host : device().count_.live[static_cast<int>(part)];
}
int64_t Meter::peak() {
  const std::lock_guard lock(device().mutex_);
  return device().count_.peak;
}
std::array<int64_t, kParts> Meter::at_peak() {
  const std::lock_guard lock(device().mutex_);
  return device().count_.at_peak;
}
void Meter::reset_peak() {
  const std::lock_guard lock(device().mutex_);
  device().count_.reset();
}
int64_t Meter::reserved() {
  const std::lock_guard lock(device().mutex_);
  return device().count_.total + static_cast<int64_t>(device().cached_);
}
void Meter::set_budget(int64_t bytes) {
  const std::lock_guard lock(device().mutex_);
  device().budget_ = bytes;
}
std::string Meter::story() {
  const std::lock_guard lock(device().mutex_);
  return device().story();
}

Meter::Scope::Scope(Part part) : before_(current_part) { current_part = part; }
Meter::Scope::~Scope() { current_part = before_; }

Meter::MetaCount::MetaCount() { meta_count = Count{}; }
Meter::MetaCount::~MetaCount() = default;
int64_t Meter::MetaCount::live() const { return meta_count.total; }
int64_t Meter::MetaCount::peak() const { return meta_count.peak; }
void Meter::MetaCount::reset_peak() { meta_count.reset(); }

}  // namespace tessera::engine
