// Blocks of 256 values in 8 bits: by a dynamic map (ops/blockwise.h) and as int8 (ops/int8.h).
#include "tessera/cuda/blockwise.cuh"
#include "tessera/cuda/kernels.h"

namespace tessera::cuda {

namespace {

constexpr int64_t kMaxGrid = 65535;

int grid_of(int64_t n) {
  const int64_t blocks = (n + kBlockValues - 1) / kBlockValues;
  return static_cast<int>(blocks < kMaxGrid ? blocks : kMaxGrid);
}

__global__ void quantise(uint8_t* __restrict__ codes, float* __restrict__ scales, const float* __restrict__ x,
                         int64_t n, const float* __restrict__ map, int zero, bool keep_sign) {
  __shared__ float values[256];
  values[threadIdx.x] = map[threadIdx.x];
  for (int64_t block = blockIdx.x; block * kBlockValues < n; block += gridDim.x) {
    const int64_t i = block * kBlockValues + threadIdx.x;
    const float value = i < n ? x[i] : 0.0f;
    const float scale = fmaxf(block_max(fabsf(value)), kLeastScale);
    if (threadIdx.x == 0) scales[block] = scale;
    if (i < n) codes[i] = map_code(values, zero, keep_sign, value / scale);
  }
}

__global__ void dequantise(float* __restrict__ out, const uint8_t* __restrict__ codes, const float* __restrict__ scales,
                           int64_t n, const float* __restrict__ map) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kBlockValues;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kBlockValues + threadIdx.x; i < n; i += stride)
    out[i] = map[codes[i]] * scales[i / kBlockValues];
}

__global__ void quantise_int8(int8_t* __restrict__ q, float* __restrict__ scales, const float* __restrict__ x,
                              int64_t n) {
  for (int64_t block = blockIdx.x; block * kBlockValues < n; block += gridDim.x) {
    const int64_t i = block * kBlockValues + threadIdx.x;
    const float value = i < n ? x[i] : 0.0f;
    const float scale = block_max(fabsf(value)) / 127;
    if (threadIdx.x == 0) scales[block] = scale;
    if (i < n) q[i] = scale > 0 ? static_cast<int8_t>(rintf(value / scale)) : 0;
  }
}

__global__ void dequantise_int8(float* __restrict__ out, const int8_t* __restrict__ q, const float* __restrict__ scales,
                                int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kBlockValues;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kBlockValues + threadIdx.x; i < n; i += stride)
    out[i] = static_cast<float>(q[i]) * scales[i / kBlockValues];
}

}  // namespace

cudaError_t launch_quantise_blocks(uint8_t* codes, float* scales, const float* x, int64_t n, const float* map, int zero,
                                   bool keep_sign, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  quantise<<<grid_of(n), kBlockValues, 0, stream>>>(codes, scales, x, n, map, zero, keep_sign);
  return cudaGetLastError();
}

cudaError_t launch_dequantise_blocks(float* out, const uint8_t* codes, const float* scales, int64_t n, const float* map,
                                     cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  dequantise<<<grid_of(n), kBlockValues, 0, stream>>>(out, codes, scales, n, map);
  return cudaGetLastError();
}

cudaError_t launch_quantise_int8(int8_t* q, float* scales, const float* x, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  quantise_int8<<<grid_of(n), kBlockValues, 0, stream>>>(q, scales, x, n);
  return cudaGetLastError();
}

cudaError_t launch_dequantise_int8(float* out, const int8_t* q, const float* scales, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  dequantise_int8<<<grid_of(n), kBlockValues, 0, stream>>>(out, q, scales, n);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
