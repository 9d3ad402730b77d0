#pragma once
// Memory of the host tier: an anonymous mapping, which the meter of the device tier does not count. Page-locked where
// the process computes on a GPU.
//
//   HostMemory host;
//   host.reserve(schedule.host_arena);
//   std::memcpy(host.at(offset), data, bytes);
#include <cstdint>

namespace tessera::engine {

class HostMemory {
 public:
  HostMemory() = default;
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;

  /// Grows only; the old contents are lost. Throws UserError (memory) when the machine has too little.
  void reserve(int64_t bytes);
  char* at(int64_t offset) const { return data_ + offset; }
  int64_t size() const { return size_; }

 private:
  void unmap();
  char* data_ = nullptr;
  int64_t size_ = 0;
  bool pinned_ = false;
};

}  // namespace tessera::engine
