#pragma once
// A tensor of the device at one offset of the block on all ranks, as symmetric windows want it (comm.h): allocators of ranks
// hold different pieces by then.
//
//   const SamePlace place(comm, bytes);                   // all ranks
//   tensor = at::empty(...);                              // the calling thread's next on the device
#include <cstdint>

#include "tessera/comm/comm.h"

namespace tessera::engine {

class SamePlace {
 public:
  /// Ranks agree on the first offset at which each has room. Does nothing where no NCCL sends, or where there is none.
  SamePlace(comm::Comm& comm, int64_t bytes);
  ~SamePlace();
  SamePlace(const SamePlace&) = delete;
  /// Of the calling thread; -1: anywhere.
  static int64_t wanted();
};

/// The first offset of the device's block, at least `from`, at which `bytes` are free; -1: there is none. By meter.cpp.
int64_t free_place(int64_t bytes, int64_t from);

}  // namespace tessera::engine
