#pragma once
// Memory of the host tier: an anonymous mapping, which the meter of the device tier does not count. Page-locked where
// the process computes on a GPU. Where the system refuses that, copies from and to it are staged (device/staging.h).
//
//   HostMemory host;
//   host.reserve(schedule.host_arena);
//   std::memcpy(host.at(offset), data, bytes);
#include <cstdint>
#include <string>

namespace tessera::engine {

class HostMemory {
 public:
  /// Of refused memory: `staged`, or the driver's own instead, for little that a device writes, or that is staging itself.
  enum class Refused { staged, drivers_own };
  explicit HostMemory(Refused refused = Refused::staged) : refused_(refused) {}
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;

  /// Grows only; the old contents are lost. Throws UserError (memory) when the machine has too little.
  void reserve(int64_t bytes);
  char* at(int64_t offset) const { return data_ + offset; }
  int64_t size() const { return size_; }

 private:
  void lock_pages();
  void unmap();

  const Refused refused_;
  char* data_ = nullptr;
  int64_t size_ = 0;
  bool pinned_ = false;       // by the system
  bool drivers_own_ = false;  // no mapping of ours
};

}  // namespace tessera::engine
