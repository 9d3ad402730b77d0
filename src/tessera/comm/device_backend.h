#pragma once
// What a machine with a GPU adds, as a table of functions from a shared library that nothing links to.
//
//   if (const DeviceBackend* device = device_backend()) device->place(rendezvous.local_rank);
//
// libtessera_cuda.so lies beside the program and is built where nvcc is found; it is opened on the first call, and only
// where there is an NVIDIA driver, so the same program runs on machines without one.
#include <cstdint>
#include <memory>

#include "tessera/comm/comm.h"

namespace c10d {
class Store;
}

namespace tessera::comm {

struct DeviceBackend {
  int version;       ///< kDeviceBackendVersion of the library's build
  const char* name;  ///< "cuda"
  int (*count)();    ///< devices that this process sees
  /// Makes device `local_rank % count` the current one of the calling thread and returns its index.
  int (*place)(int local_rank);
  /// A stream of the current device for the lane; the same lane always has the same stream.
  void* (*lane_stream)(int lane);
  /// NCCL between `size` ranks that meet at `store`; tensors on the current device. A call waits until all is done.
  std::unique_ptr<Transport> (*make_transport)(c10d::Store& store, int index, int size, double timeout_seconds);
  /// out[i] = parts[0][i] + parts[1][i] + ... in this order, plus what `out` had when `accumulate`: the reduction of
  /// Group::reduce_scatter for device memory, with the same bits every time.
  void (*sum_in_order)(float* out, const float* const* parts, int count, int64_t n, bool accumulate, void* stream);
};

inline constexpr int kDeviceBackendVersion = 1;
inline constexpr int kMaxSummands = 64;  ///< of sum_in_order: the pointers travel as a kernel argument

/// The table, or nullptr where there is no GPU or no library; `device_backend_absence()` says why.
const DeviceBackend* device_backend();
const char* device_backend_absence();

}  // namespace tessera::comm

/// The one symbol of the library.
extern "C" const tessera::comm::DeviceBackend* tessera_cuda_register();
