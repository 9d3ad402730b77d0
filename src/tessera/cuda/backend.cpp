// The table that comm/device_backend.h asks for: placement on devices, a stream for each lane, NCCL, sums.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/version.h>

#include <mutex>

#include "tessera/comm/device_backend.h"
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/nccl.h"

namespace tessera::cuda {

namespace {

int count() { return c10::cuda::device_count(); }

int place(int local_rank) {
  const int device = local_rank % count();
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
  return device;
}

/// Streams of LibTorch's pool are never freed; a lane keeps the one it got first, so that its work stays in order.
void* lane_stream(int lane) {
  static std::mutex mutex;
  static std::map<std::pair<int, int>, c10::cuda::CUDAStream> streams;
  const std::lock_guard lock(mutex);
  const std::pair key(static_cast<int>(c10::cuda::current_device()), lane);
  const auto it = streams.find(key);
  if (it != streams.end()) return it->second.stream();
  return streams.emplace(key, c10::cuda::getStreamFromPool(/*isHighPriority=*/lane != 0)).first->second.stream();
}

void sum_in_order(float* out, const float* const* parts, int summands, int64_t n, bool accumulate, void* stream) {
  C10_CUDA_CHECK(launch_sum_in_order(out, parts, summands, n, accumulate, static_cast<cudaStream_t>(stream)));
}

}  // namespace

}  // namespace tessera::cuda

extern "C" const tessera::comm::DeviceBackend* tessera_cuda_register() {
  using namespace tessera::cuda;
  static const tessera::comm::DeviceBackend table = {
      .version = tessera::comm::kDeviceBackendVersion,
      .name = "cuda",
      .torch_version = TORCH_VERSION,
      .cuda_version = CUDART_VERSION,
      .count = count,
      .place = place,
      .lane_stream = lane_stream,
      .make_transport = make_nccl_transport,
      .sum_in_order = sum_in_order,
  };
  return &table;
}
