// Blocks of 256 values in 8 bits: by a dynamic map (ops/blockwise.h) and as int8 (ops/eight_bit.h).
#include "tessera/cuda/dynamic_map.cuh"
#include "tessera/cuda/kernels.h"

namespace tessera::cuda {

namespace {

__global__ void quantise(uint8_t* __restrict__ codes, float* __restrict__ scales, const float* __restrict__ x,
                         int64_t n, const float* __restrict__ map, int zero, bool keep_sign) {
  __shared__ float values[256];
  load_map(values, map);
  __syncthreads();
  for (BlockOfWarp block(n); block.inside(); block.next()) {
    float lane[kLaneValues], scale;
    uint8_t codes_of_lane[kLaneValues];
    load_lane(lane, x + block.at(), block.count());
    quantise_lane(codes_of_lane, scale, lane, values, zero, keep_sign);
    store_lane(codes + block.at(), codes_of_lane, block.count());
    if (block.leads()) scales[block.index()] = scale;
  }
}

__global__ void dequantise(float* __restrict__ out, const uint8_t* __restrict__ codes, const float* __restrict__ scales,
                           int64_t n, const float* __restrict__ map) {
  __shared__ float values[256];
  load_map(values, map);
  __syncthreads();
  for (BlockOfWarp block(n); block.inside(); block.next()) {
    uint8_t codes_of_lane[kLaneValues];
    float lane[kLaneValues];
    load_lane(codes_of_lane, codes + block.at(), block.count());
    dequantise_lane(lane, codes_of_lane, scales[block.index()], values);
    store_lane(out + block.at(), lane, block.count());
  }
}

/// Within 127 also where the scale is so small that its rounding matters; NaN is 0.
__device__ int8_t steps(float x, float scale) {
  const float rounded = rintf(x / scale);
  return rounded == rounded ? static_cast<int8_t>(fminf(fmaxf(rounded, -127.0f), 127.0f)) : int8_t{0};
}

__global__ void quantise_int8(int8_t* __restrict__ q, float* __restrict__ scales, const float* __restrict__ x,
                              int64_t n) {
  for (BlockOfWarp block(n); block.inside(); block.next()) {
    float lane[kLaneValues];
    int8_t q_of_lane[kLaneValues];
    load_lane(lane, x + block.at(), block.count());
    const float scale = warp_max(largest_magnitude(lane)) / 127;
    for (int j = 0; j < kLaneValues; ++j) q_of_lane[j] = scale > 0 ? steps(lane[j], scale) : int8_t{0};
    store_lane(q + block.at(), q_of_lane, block.count());
    if (block.leads()) scales[block.index()] = scale;
  }
}

__global__ void dequantise_int8(float* __restrict__ out, const int8_t* __restrict__ q, const float* __restrict__ scales,
                                int64_t n) {
  for (BlockOfWarp block(n); block.inside(); block.next()) {
    int8_t q_of_lane[kLaneValues];
    float lane[kLaneValues];
    load_lane(q_of_lane, q + block.at(), block.count());
    const float scale = scales[block.index()];
    for (int j = 0; j < kLaneValues; ++j) lane[j] = static_cast<float>(q_of_lane[j]) * scale;
    store_lane(out + block.at(), lane, block.count());
  }
}

}  // namespace

cudaError_t launch_quantise_blocks(uint8_t* codes, float* scales, const float* x, int64_t n, const float* map, int zero,
                                   bool keep_sign, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  TESSERA_LAUNCH(quantise, thread_blocks(n), kThreads, stream, codes, scales, x, n, map, zero, keep_sign);
  return cudaGetLastError();
}

cudaError_t launch_dequantise_blocks(float* out, const uint8_t* codes, const float* scales, int64_t n, const float* map,
                                     cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  TESSERA_LAUNCH(dequantise, thread_blocks(n), kThreads, stream, out, codes, scales, n, map);
  return cudaGetLastError();
}

cudaError_t launch_quantise_int8(int8_t* q, float* scales, const float* x, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  TESSERA_LAUNCH(quantise_int8, thread_blocks(n), kThreads, stream, q, scales, x, n);
  return cudaGetLastError();
}

cudaError_t launch_dequantise_int8(float* out, const int8_t* q, const float* scales, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  TESSERA_LAUNCH(dequantise_int8, thread_blocks(n), kThreads, stream, out, q, scales, n);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
