#pragma once
// Brings tensors from the host to the device, and the host goes on: what it brings is copied to page-locked memory, from
// where the device fetches it.
//
//   Uploads uploads;
//   const Tensor there = uploads.bring(here, device);      // for what this thread's stream is given next
#include <memory>
#include <vector>

#include "tessera/device/streams.h"
#include "tessera/engine/memory/host_memory.h"
#include "tessera/torch_headers.h"

namespace tessera::engine {

class Uploads {
 public:
  /// The tensor itself on a CPU. Its memory is counted as any tensor's; the page-locked memory, as much as is under way at
  /// once, is kept.
  at::Tensor bring(const at::Tensor& here, at::Device device);

 private:
  struct Buffer {
    HostMemory memory;
    device::Mark copied;
  };
  Buffer& buffer(int64_t bytes);
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

}  // namespace tessera::engine
