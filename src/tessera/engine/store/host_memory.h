#pragma once
// Memory of the host tier: an anonymous mapping, which the meter of the device tier does not count. Page-locked where
// the process computes on a GPU. Where the system refuses that, copies from and to it are staged (device/staging.h). Its end
// may be a file that processes of the machine share (comm/shared_file.h). Its pages lie on the GPU's NUMA node, or where
// node_parts.h has room for them.
//
//   HostMemory host;
//   host.reserve(schedule.host_arena);
//   std::memcpy(host.at(offset), data, bytes);
#include <cstdint>
#include <string>

#include "tessera/comm/shared_file.h"
#include "tessera/engine/store/node_parts.h"

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
  /// The same for `own` bytes of this process, with those of the file behind them: at(own) is its first. Once. Whoever is the
  /// first to reserve it takes the file's pages, on the node of its GPU.
  void reserve(int64_t own, const comm::SharedFile& file);
  /// Whether this process may write the bytes of the file. At first it may.
  void allow_writes(bool allowed);
  char* at(int64_t offset) const { return data_ + offset; }
  int64_t size() const { return size_; }

 private:
  bool map(int64_t own, const comm::SharedFile* file);
  void lock_pages();
  void unmap();
  char* pages() const { return data_ - lead_; }
  int64_t pages_size() const { return lead_ + size_; }  // of the whole mapping

  const Refused refused_;
  char* data_ = nullptr;
  int64_t size_ = 0, lead_ = 0;  // bytes, and those before them, so that a file begins with a page
  int64_t shared_ = 0;           // bytes of the file, at the end
  bool pinned_ = false;          // by the system
  bool drivers_own_ = false;     // no mapping of ours
  NodeParts parts_;              // of the mapping, without the file
};

}  // namespace tessera::engine
