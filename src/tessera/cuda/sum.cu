// Sums whose order is the CPU's: of parts in rank order, and of squares.
#include <algorithm>

#include "tessera/cuda/halves.cuh"

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

// A warp has a partial sum and each of its lanes one of the 32 sums that take turns (ops::sum_of_squares). A lane adds in
// order, so it waits for each addition; what it reads, it asks for sixteen turns ahead.
__global__ void sum_squares(double* __restrict__ partials, const float* __restrict__ x, int64_t n) {
  constexpr int kAhead = 16;
  __shared__ double sums[kWarps][32];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * kWarps + warp; c * kSquaresOfPartial < n;
       c += static_cast<int64_t>(gridDim.x) * kWarps) {
    const float* values = x + c * kSquaresOfPartial;
    const int64_t left = n - c * kSquaresOfPartial;
    const int count = static_cast<int>(left < kSquaresOfPartial ? left : kSquaresOfPartial), whole = count / 32 * 32;
    double sum = 0;
    int i = 0;
    for (; i + kAhead * 32 <= whole; i += kAhead * 32) {
      float ahead[kAhead];
      for (int j = 0; j < kAhead; ++j) ahead[j] = values[i + j * 32 + lane];
      for (int j = 0; j < kAhead; ++j) sum += static_cast<double>(ahead[j]) * static_cast<double>(ahead[j]);
    }
    for (; i < whole; i += 32) sum += static_cast<double>(values[i + lane]) * static_cast<double>(values[i + lane]);
    sums[warp][lane] = sum;
    __syncwarp();
    if (lane == 0) {
      const double(&turns)[32] = sums[warp];
      double total = 0;
      for (int w = 0; w < 8; ++w) total += (turns[w] + turns[8 + w]) + (turns[16 + w] + turns[24 + w]);
      for (; i < count; ++i) total += static_cast<double>(values[i]) * static_cast<double>(values[i]);
      partials[c] = total;
    }
    __syncwarp();  // the sums are read
  }
}

/// out = partials[0] + partials[1] + ... One thread adds, the others of its block read ahead.
__global__ void add_in_order(double* out, const double* partials, int64_t count) {
  __shared__ double ahead[kThreads];
  double total = 0;
  for (int64_t first = 0; first < count; first += kThreads) {
    if (first + threadIdx.x < count) ahead[threadIdx.x] = partials[first + threadIdx.x];
    __syncthreads();
    for (int i = 0; threadIdx.x == 0 && i < kThreads && first + i < count; ++i) total += ahead[i];
    __syncthreads();  // they are added
  }
  if (threadIdx.x == 0) *out = total;
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
  TESSERA_LAUNCH(add_in_order, 1, kThreads, stream, out, partials, partial_sums(n));
  return cudaGetLastError();
}

}  // namespace tessera::cuda
