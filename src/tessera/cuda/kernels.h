#pragma once
// Launch functions of our kernels, on raw pointers: .cu files never see LibTorch (nvcc takes minutes on its headers).
#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::cuda {

/// See DeviceBackend::sum_in_order; at most kMaxSummands parts.
cudaError_t launch_sum_in_order(float* out, const float* const* parts, int count, int64_t n, bool accumulate,
                                cudaStream_t stream);

}  // namespace tessera::cuda
