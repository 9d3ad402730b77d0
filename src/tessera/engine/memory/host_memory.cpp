#include "tessera/engine/memory/host_memory.h"

#include <sys/mman.h>

#include "tessera/base/check.h"
#include "tessera/base/units.h"

namespace tessera::engine {

HostMemory::~HostMemory() { unmap(); }

void HostMemory::unmap() {
  if (data_) munmap(data_, static_cast<size_t>(size_));
  data_ = nullptr, size_ = 0;
}

void HostMemory::reserve(int64_t bytes) {
  if (bytes <= size_) return;
  unmap();
  // MAP_POPULATE: a machine with too little memory fails here, before the first step, and not in the middle of one.
  void* mapped = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED)
    throw UserError(Exit::memory, "engine.host",
                    "the host has no " + format_bytes(bytes) + " for what the plan offloads",
                    "offload less (activations = \"recompute\"), or use more ranks");
  madvise(mapped, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  data_ = static_cast<char*>(mapped), size_ = bytes;
}

}  // namespace tessera::engine
