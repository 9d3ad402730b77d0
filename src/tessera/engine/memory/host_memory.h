#pragma once
// Memory of the host tier: a mapping of our own, outside the counted device allocator.
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

  /// Grows only, and loses what it held. Throws UserError (memory) when the machine has no more.
  void reserve(int64_t bytes);
  char* at(int64_t offset) const { return data_ + offset; }
  int64_t size() const { return size_; }

 private:
  void unmap();
  char* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace tessera::engine
