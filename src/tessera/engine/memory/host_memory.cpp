#include "tessera/engine/memory/host_memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/device/backend.h"

namespace tessera::engine {

namespace {

/// Takes the pages now, in huge ones where the system has them: a machine with too little memory fails here, before the
/// first step, and not in the middle of one.
bool touch(void* mapped, size_t size) {
  madvise(mapped, size, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  if (madvise(mapped, size, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;  // a kernel before 5.14 does not know it
#endif
  for (size_t at = 0; at < size; at += 4096) static_cast<volatile char*>(mapped)[at] = 0;
  return true;
}

}  // namespace

HostMemory::~HostMemory() { unmap(); }

void HostMemory::unmap() {
  if (pinned_ && device::used()->fault().empty()) try {
      device::used()->wait();  // a copy may be under way
      device::used()->unpin(data_);
    } catch (const c10::Error&) {  // what was under way failed: who waits for it says so
    }
  pinned_ = false;
  if (data_) munmap(data_, static_cast<size_t>(size_));
  data_ = nullptr, size_ = 0;
}

void HostMemory::reserve(int64_t bytes) {
  if (bytes <= size_) return;
  unmap();
  const auto size = static_cast<size_t>(bytes);
  void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED || !touch(mapped, size)) {
    if (mapped != MAP_FAILED) munmap(mapped, size);
    throw UserError(Exit::memory, "engine.host",
                    "the host has no " + format_bytes(bytes) + " for what the plan offloads",
                    "offload less (activations = \"recompute\"), or use more ranks");
  }
  data_ = static_cast<char*>(mapped), size_ = bytes;
  if (const device::Backend* device = device::used()) {
    device::count_memory_request();
    pinned_ = device->pin(data_, size_);
  }
  if (device::used() && !pinned_) {
    static std::atomic<bool> told = false;
    if (!told.exchange(true))
      log::warn(
          "the system does not page-lock the host memory of offloaded tensors: copies to the GPU take about twice "
          "as long; raise the limit (ulimit -l unlimited, docker run --ulimit memlock=-1)");
  }
}

}  // namespace tessera::engine
