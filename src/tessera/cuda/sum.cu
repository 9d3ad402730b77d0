// Sums whose order is the CPU's: of parts in rank order, and of squares.
#include <algorithm>

#include "tessera/cuda/halves.cuh"
#include "tessera/cuda/squares.cuh"

namespace tessera::cuda {

namespace {

template <class T>
struct Parts {
  const T* at[kMaxParts];
  int count;
};

// One thread an element, a fixed order of additions: the same bits as Group::reduce_scatter on the host. `out` may be one
// of the parts.
__global__ void sum_in_order(float* out, Parts<float> parts, int64_t n, bool accumulate) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    float total = parts.at[0][i];
    for (int p = 1; p < parts.count; ++p) total = __fadd_rn(total, parts.at[p][i]);
    out[i] = accumulate ? __fadd_rn(out[i], total) : total;
  }
}

__device__ void add_halves(float (&total)[kLaneValues], const Parts<uint16_t>& parts, HalfType type,
                           const BlockOfWarp& block) {
  load_widened(total, parts.at[0] + block.at(), type, block.count());
  for (int p = 1; p < parts.count; ++p) {
    float part[kLaneValues];
    load_widened(part, parts.at[p] + block.at(), type, block.count());
    for (int j = 0; j < kLaneValues; ++j) total[j] = __fadd_rn(total[j], part[j]);
  }
}

__global__ void sum_halves(float* __restrict__ out, Parts<uint16_t> parts, HalfType type, int64_t n, bool accumulate) {
  for (BlockOfWarp block(n); block.inside(); block.next()) {
    float total[kLaneValues];
    add_halves(total, parts, type, block);
    if (accumulate) {
      float before[kLaneValues];
      load_lane(before, out + block.at(), block.count());
      for (int j = 0; j < kLaneValues; ++j) total[j] = __fadd_rn(before[j], total[j]);
    }
    store_lane(out + block.at(), total, block.count());
  }
}

// `out` may be one of the parts: a lane reads its values of all of them before it writes.
__global__ void sum_halves_rounded(uint16_t* out, Parts<uint16_t> parts, HalfType type, int64_t n) {
  for (BlockOfWarp block(n); block.inside(); block.next()) {
    float total[kLaneValues];
    add_halves(total, parts, type, block);
    store_narrowed(out + block.at(), total, type, block.count());
  }
}

/// Of values in fp32.
struct Floats {
  const float* values;
  __device__ float operator()(int64_t i) const { return values[i]; }
};

__global__ void sum_squares(double* __restrict__ partials, const float* __restrict__ x, int64_t n) {
  __shared__ double sums[kWarps][32];
  partial_squares(partials, sums, n, Floats{x});
}

/// out[t] = partials[t] + partials[each + t] + ..., or adds that. One thread adds for each t, all of the block read ahead.
__global__ void add_in_order(double* out, const double* partials, int64_t count, int each, bool adds) {
  __shared__ double ahead[kThreads];
  const int own = threadIdx.x;
  double total = 0;
  for (int64_t first = 0; first < count; first += kThreads) {
    if (first + own < count) ahead[own] = partials[first + own];
    __syncthreads();
    for (int i = own; own < each && i < kThreads && first + i < count; i += each) total += ahead[i];
    __syncthreads();  // they are added
  }
  if (own < each) out[own] = adds ? out[own] + total : total;
}

template <class T, class P>
Parts<T> argument_of(const P* const* parts, int count) {
  Parts<T> argument{};
  argument.count = count;
  for (int p = 0; p < count; ++p) argument.at[p] = static_cast<const T*>(parts[p]);
  return argument;
}

}  // namespace

cudaError_t launch_sum_in_order(float* out, const float* const* parts, int count, int64_t n, bool accumulate,
                                cudaStream_t stream) {
  if (count < 1 || count > kMaxParts) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  const int blocks = static_cast<int>(std::min<int64_t>((n + kThreads - 1) / kThreads, kMaxThreadBlocks));
  TESSERA_LAUNCH(sum_in_order, blocks, kThreads, stream, out, argument_of<float>(parts, count), n, accumulate);
  return cudaGetLastError();
}

cudaError_t launch_sum_halves(float* out, const void* const* parts, int count, HalfType type, int64_t n,
                              bool accumulate, cudaStream_t stream) {
  if (count < 1 || count > kMaxParts) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  TESSERA_LAUNCH(sum_halves, thread_blocks(n), kThreads, stream, out, argument_of<uint16_t>(parts, count), type, n,
                 accumulate);
  return cudaGetLastError();
}

cudaError_t launch_sum_halves_rounded(uint16_t* out, const void* const* parts, int count, HalfType type, int64_t n,
                                      cudaStream_t stream) {
  if (count < 1 || count > kMaxParts) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  TESSERA_LAUNCH(sum_halves_rounded, thread_blocks(n), kThreads, stream, out, argument_of<uint16_t>(parts, count), type,
                 n);
  return cudaGetLastError();
}

cudaError_t launch_sum_of_squares(double* out, double* partials, const float* x, int64_t n, cudaStream_t stream) {
  const int64_t wanted = (partial_sums(n) + kWarps - 1) / kWarps;
  if (n > 0)
    TESSERA_LAUNCH(sum_squares, static_cast<int>(std::min<int64_t>(wanted, kMaxThreadBlocks)), kThreads, stream,
                   partials, x, n);
  return launch_add_in_order(out, partials, partial_sums(n), 1, /*adds=*/false, stream);
}

cudaError_t launch_add_in_order(double* out, const double* partials, int64_t count, int each, bool adds,
                                cudaStream_t stream) {
  TESSERA_LAUNCH(add_in_order, 1, kThreads, stream, out, partials, count, each, adds);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
