#include <algorithm>

#include "tessera/cuda/kernels.h"
#include "tessera/cuda/launch.h"

namespace tessera::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kMaxParts = 64;

struct Parts {
  const float* at[kMaxParts];
  int count;
};

// One thread an element, a fixed order of additions: the same bits as Group::reduce_scatter on the host.
__global__ void sum_in_order(float* __restrict__ out, Parts parts, int64_t n, bool accumulate) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    float total = parts.at[0][i];
    for (int p = 1; p < parts.count; ++p) total = __fadd_rn(total, parts.at[p][i]);
    out[i] = accumulate ? __fadd_rn(out[i], total) : total;
  }
}

}  // namespace

cudaError_t launch_sum_in_order(float* out, const float* const* parts, int count, int64_t n, bool accumulate,
                                cudaStream_t stream) {
  if (count < 1 || count > kMaxParts) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  Parts argument{};
  argument.count = count;
  std::copy_n(parts, count, argument.at);
  const int blocks = static_cast<int>(std::min<int64_t>((n + kThreads - 1) / kThreads, kMaxThreadBlocks));
  TESSERA_LAUNCH(sum_in_order, blocks, kThreads, stream, out, argument, n, accumulate);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
