#pragma once
// Functions that a machine with a GPU adds: a table from a shared library that nothing links to.
//
//   if (const DeviceBackend* device = device_backend()) device->place(rendezvous.local_rank);
//
// libtessera_cuda.so is built if nvcc is found and installed beside the program. It is loaded on the first call if
// there is an NVIDIA driver, so the same program runs on machines without one.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace c10d {
class Store;
}

namespace tessera::comm {

class Transport;

struct DeviceBackend {
  int version;                ///< kDeviceBackendVersion of the library's build
  const char* name;           ///< "cuda"
  const char* torch_version;  ///< of the LibTorch that the library was built for: "2.11.0"
  int cuda_version;           ///< of its CUDA runtime: 13000 is 13.0; a driver of this major version is needed
  int (*count)();             ///< devices visible to this process
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

inline constexpr int kDeviceBackendVersion = 2;
inline constexpr int kMaxSummands = 64;  ///< of sum_in_order, because the pointers are a kernel argument

/// The table, or nullptr without a GPU or the library; `device_backend_absence()` gives the reason, and what to do where
/// something can be done.
const DeviceBackend* device_backend();
const char* device_backend_absence();

/// What device_backend() opens. Tests name others.
struct DevicePlaces {
  std::string driver = "libcuda.so.1";
  std::filesystem::path library;  ///< libtessera_cuda.so
  std::string torch;              ///< at::show_config() of the LibTorch of this process
};
struct OpenedDevice {
  const DeviceBackend* table = nullptr;
  std::string absence;  ///< if there is no table
};
OpenedDevice open_device_backend(const DevicePlaces& places);

}  // namespace tessera::comm

/// The only exported symbol of the library.
extern "C" const tessera::comm::DeviceBackend* tessera_cuda_register();
