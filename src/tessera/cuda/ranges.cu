// Ranges in fp32 become 16-bit ranges and come back (ops/half.h, ops/bf16.h), also in place.
#include <algorithm>

#include "tessera/cuda/halves.cuh"

namespace tessera::cuda {

namespace {

constexpr int64_t kOneBlock = kWarps * kBlockValues;  // values that the registers of one thread block hold

__global__ void narrow_range(uint16_t* __restrict__ out, const float* __restrict__ x, HalfType type, int64_t n) {
  for (BlockOfWarp block(n); block.inside(); block.next()) {
    float lane[kLaneValues];
    load_lane(lane, x + block.at(), block.count());
    store_narrowed(out + block.at(), lane, type, block.count());
  }
}

__global__ void widen_range(float* __restrict__ out, const uint16_t* __restrict__ x, HalfType type, int64_t n) {
  for (BlockOfWarp block(n); block.inside(); block.next()) {
    float lane[kLaneValues];
    load_widened(lane, x + block.at(), type, block.count());
    store_lane(out + block.at(), lane, block.count());
  }
}

// At most kOneBlock values, whose ranges may overlap: one thread block has read all before it writes.
__global__ void narrow_overlapping(uint16_t* out, const float* x, HalfType type, int64_t n) {
  const BlockOfWarp block(n);
  float lane[kLaneValues];
  load_lane(lane, x + block.at(), block.count());
  __syncthreads();
  store_narrowed(out + block.at(), lane, type, block.count());
}

__global__ void widen_overlapping(float* out, const uint16_t* x, HalfType type, int64_t n) {
  const BlockOfWarp block(n);
  float lane[kLaneValues];
  load_widened(lane, x + block.at(), type, block.count());
  __syncthreads();
  store_lane(out + block.at(), lane, block.count());
}

__global__ void high_halves(uint16_t* __restrict__ out, const float* __restrict__ x, int64_t n) {
  for (BlockOfWarp block(n); block.inside(); block.next()) {
    float lane[kLaneValues];
    uint16_t halves[kLaneValues];
    load_lane(lane, x + block.at(), block.count());
    for (int j = 0; j < kLaneValues; ++j) halves[j] = high_half(lane[j]);
    store_lane(out + block.at(), halves, block.count());
  }
}

__global__ void round_range(float* values, HalfType type, int64_t n) {
  for (BlockOfWarp block(n); block.inside(); block.next()) {
    float lane[kLaneValues];
    load_lane(lane, values + block.at(), block.count());
    for (int j = 0; j < kLaneValues; ++j) lane[j] = widen(narrow(lane[j], type), type);
    store_lane(values + block.at(), lane, block.count());
  }
}

}  // namespace

cudaError_t launch_narrow(uint16_t* out, const float* x, HalfType type, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  TESSERA_LAUNCH(narrow_range, thread_blocks(n), kThreads, stream, out, x, type, n);
  return cudaGetLastError();
}

cudaError_t launch_widen(float* out, const uint16_t* x, HalfType type, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  TESSERA_LAUNCH(widen_range, thread_blocks(n), kThreads, stream, out, x, type, n);
  return cudaGetLastError();
}

// Elements [a, b) are written to bytes [2a, 2b) and read from [4a, 4b): with b <= 2a a launch does not overlap itself, and
// what it overwrites was read by those before.
cudaError_t launch_narrow_in_place(float* values, HalfType type, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  auto* halves = reinterpret_cast<uint16_t*>(values);
  TESSERA_LAUNCH(narrow_overlapping, 1, kThreads, stream, halves, values, type, std::min(n, kOneBlock));
  cudaError_t error = cudaGetLastError();
  for (int64_t a = kOneBlock; a < n && error == cudaSuccess; a *= 2)
    error = launch_narrow(halves + a, values + a, type, std::min(a, n - a), stream);
  return error;
}

// Elements [a, b) are read from bytes [2n + 2a, 2n + 2b) and written to [4a, 4b): with b <= (n + a) / 2 a launch does not
// overlap itself, and what it overwrites was read by those before. Each takes half of what is left, in whole blocks of 256
// so that accesses stay aligned.
cudaError_t launch_widen_in_place(float* values, HalfType type, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(values) + n;
  int64_t a = 0;
  while (n - a > kOneBlock) {
    const int64_t count = (n - a) / 2 / kBlockValues * kBlockValues;
    if (const cudaError_t error = launch_widen(values + a, halves + a, type, count, stream)) return error;
    a += count;
  }
  TESSERA_LAUNCH(widen_overlapping, 1, kThreads, stream, values + a, halves + a, type, n - a);
  return cudaGetLastError();
}

cudaError_t launch_high_half(uint16_t* out, const float* x, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  TESSERA_LAUNCH(high_halves, thread_blocks(n), kThreads, stream, out, x, n);
  return cudaGetLastError();
}

cudaError_t launch_round(float* values, HalfType type, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  TESSERA_LAUNCH(round_range, thread_blocks(n), kThreads, stream, values, type, n);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
