#pragma once
// Brings tensors from the host to the device, and the host goes on: what it brings is copied to page-locked memory, from
// where the device fetches it.
//
//   Uploads uploads;
//   uploads.reserve(bytes);                                // of all that is brought before the host waits for the device
//   const Tensor there = uploads.bring(here, device);      // for what this thread's stream is given next
#include <deque>

#include "tessera/device/streams.h"
#include "tessera/engine/memory/host_memory.h"
#include "tessera/torch_headers.h"

namespace tessera::engine {

class Uploads {
 public:
  /// Page-locks as much as `bytes` of tensors under way at once need, so that bring() locks none. Waits for what is under way.
  void reserve(int64_t bytes);
  /// The tensor itself on a CPU. Its memory is counted as any tensor's. The host waits where more is under way than was
  /// reserved.
  at::Tensor bring(const at::Tensor& here, at::Device device);

 private:
  struct Part {
    int64_t begin, end;
    device::Mark copied;
  };
  int64_t place(int64_t bytes);
  HostMemory memory_{HostMemory::Refused::drivers_own};
  std::deque<Part> under_way_;  // oldest first: a ring in memory_
};

}  // namespace tessera::engine
