#pragma once
// Functions that a machine with a GPU adds: a table from a shared library that nothing links to.
//
//   if (const DeviceBackend* device = device_backend()) device->place(rendezvous.local_rank);
//
// libtessera_cuda.so is built if nvcc is found and installed beside the program. It is loaded on the first call if
// there is an NVIDIA driver, so the same program runs on machines without one.
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
  int (*count)();    ///< devices visible to this process
  /// Makes device `local_rank % count` current for the calling thread and returns its index.
  int (*place)(int local_rank);
  /// The stream of a lane on the current device; the same lane always has the same stream.
  void* (*lane_stream)(int lane);
  /// NCCL between the `size` ranks of `store`, for tensors on the current device. Calls return when all transfers are
  /// done.
  std::unique_ptr<Transport> (*make_transport)(c10d::Store& store, int index, int size, double timeout_seconds);
  /// out[i] = parts[0][i] + parts[1][i] + ... in this order, plus the previous out[i] if `accumulate`: the
  /// deterministic sum of Group::reduce_scatter in device memory.
  void (*sum_in_order)(float* out, const float* const* parts, int count, int64_t n, bool accumulate, void* stream);
};

inline constexpr int kDeviceBackendVersion = 1;
inline constexpr int kMaxSummands = 64;  ///< of sum_in_order, because the pointers are a kernel argument

/// The table, or nullptr without a GPU or the library; `device_backend_absence()` gives the reason.
const DeviceBackend* device_backend();
const char* device_backend_absence();

}  // namespace tessera::comm

/// The only exported symbol of the library.
extern "C" const tessera::comm::DeviceBackend* tessera_cuda_register();
