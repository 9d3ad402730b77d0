#include "tessera/engine/store/host_memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/device/staging.h"
#include "tessera/engine/store/node_parts.h"

namespace tessera::engine {

namespace {

constexpr int64_t kPage = 4096;

/// The processors near the GPU; empty: any.
std::vector<int> cpus_near_gpu() {
  if (!device::used()) return {};
  const std::optional<NumaNode> node = near_node(device::used()->properties(device::here().index()).pci);
  return node ? node->cpus : std::vector<int>();
}

[[noreturn]] void throw_too_little(int64_t bytes) {
  throw UserError(Exit::memory, "engine.host", "the host has no " + format_bytes(bytes) + " for what the plan offloads",
                  "offload less (activations = \"recompute\"), or use more ranks");
}

/// Once: what the system refused, and what follows.
void warn_refused(const std::string& why, const std::string& follows) {
  static std::atomic<bool> told = false;
  if (told.exchange(true)) return;
  rlimit limit{};
  std::string reason = why;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    reason += ", ulimit -l is " + format_bytes(static_cast<int64_t>(limit.rlim_cur));
  log::warn("the system refuses to page-lock the host memory of offloaded tensors (" + reason + "): " + follows +
            "; raise the limit (ulimit -l unlimited, docker run --ulimit memlock=-1)");
}

}  // namespace

HostMemory::~HostMemory() { unmap(); }

void HostMemory::unmap() {
  if (pinned_ && device::used()->fault().empty()) try {
      device::used()->wait();  // a copy may be under way
      device::unpin(pages());
    } catch (const c10::Error&) {  // what was under way failed: who waits for it says so
    }
  pinned_ = false;
  if (drivers_own_)
    device::used()->give_pinned(data_);
  else if (data_) {
    if (device::used()) device::unstage(pages());
    munmap(pages(), static_cast<size_t>(pages_size()));
  }
  drivers_own_ = false;
  give_node_parts(std::exchange(parts_, {}));
  data_ = nullptr, size_ = lead_ = shared_ = 0;
}

/// False where the machine has too little memory.
bool HostMemory::map(int64_t own, const comm::SharedFile* file) {
  const int64_t shared = file ? file->size() : 0, lead = file ? round_up(own, kPage) - own : 0;
  const auto before = static_cast<size_t>(lead + own), size = before + static_cast<size_t>(shared);
  void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return false;
  char* end = static_cast<char*>(mapped) + before;
  // Taken now: a machine with too little memory fails here, before the first step, and not in the middle of one.
  bool taken = !file || mmap(end, static_cast<size_t>(shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                             file->descriptor(), 0) != MAP_FAILED;
  if (device::used()) parts_ = take_node_parts(static_cast<int64_t>(before));
  taken = taken &&
          (before == 0 ||
           (parts_.empty() ? touch_pages(mapped, before, cpus_near_gpu()) : touch_parts(mapped, before, parts_))) &&
          (!file || touch_pages(end, static_cast<size_t>(shared), cpus_near_gpu()));
  if (!taken) {
    munmap(mapped, size);
    give_node_parts(std::exchange(parts_, {}));
    return false;
  }
  data_ = static_cast<char*>(mapped) + lead;
  size_ = own + shared, lead_ = lead, shared_ = shared;
  return true;
}

void HostMemory::reserve(int64_t bytes) {
  if (bytes <= size_) return;
  unmap();
  if (!map(bytes, nullptr)) throw_too_little(bytes);
  if (device::used()) lock_pages();
}

void HostMemory::reserve(int64_t own, const comm::SharedFile& file) {
  check_internal(!data_, "engine.host", "memory that is reserved already cannot be shared");
  if (!map(own, &file)) throw_too_little(own + file.size());
  if (device::used()) lock_pages();
}

void HostMemory::allow_writes(bool allowed) {
  char* file = data_ + size_ - shared_;
  const int failed = mprotect(file, static_cast<size_t>(shared_), allowed ? PROT_READ | PROT_WRITE : PROT_READ);
  check_internal(failed == 0, "engine.host", "the access to shared memory cannot be changed");
}

void HostMemory::lock_pages() {
  const device::Backend& device = *device::used();
  const std::string refusal = device::pin(pages(), pages_size());
  pinned_ = refusal.empty();
  if (pinned_) return;
  if (refused_ == Refused::drivers_own && shared_ == 0) {
    void* own = device.take_pinned(size_);
    if (!own) return;  // copies wait; what the device would write is not known
    std::memset(own, 0, static_cast<size_t>(size_));
    munmap(data_, static_cast<size_t>(size_));
    data_ = static_cast<char*>(own), drivers_own_ = true;
    return;
  }
  if (device::stage(pages(), pages_size()))
    warn_refused(refusal, "copies to and from the GPU are staged through " + format_bytes(device::staging_bytes()) +
                              " of page-locked memory, an extra copy on a CPU core that the plan's times leave out");
  else
    warn_refused(refusal,
                 "the driver has no page-locked memory either, so each copy between host and GPU blocks the host");
}

}  // namespace tessera::engine
