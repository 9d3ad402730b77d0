// Matrices of 8-bit floats with a scale a tile (ops/fp8.h): one thread block a tile, which reads it twice.
#include <cuda_fp8.h>

#include "tessera/cuda/blockwise.cuh"
#include "tessera/cuda/kernels.h"

namespace tessera::cuda {

namespace {

struct Tile {
  int64_t first, rows, cols;  // offset of its first value, and its size
};

__host__ __device__ int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
__host__ __device__ int64_t across(const Fp8Matrix& m) { return div_up(m.cols, m.tile_cols); }
__host__ __device__ int64_t count(const Fp8Matrix& m) { return div_up(m.rows, m.tile_rows) * across(m); }

__device__ Tile tile_at(const Fp8Matrix& m, int64_t tile) {
  const int64_t top = tile / across(m) * m.tile_rows, left = tile % across(m) * m.tile_cols;
  return {top * m.cols + left, min(m.tile_rows, m.rows - top), min(m.tile_cols, m.cols - left)};
}

__device__ int64_t offset(const Fp8Matrix& m, const Tile& tile, int64_t i) {
  return tile.first + i / tile.cols * m.cols + i % tile.cols;
}

__global__ void quantise(uint8_t* __restrict__ codes, float* __restrict__ scales, const float* __restrict__ x,
                         Fp8Matrix m) {
  const float top = m.e5m2 ? 57344.0f : 448.0f;
  for (int64_t t = blockIdx.x; t < count(m); t += gridDim.x) {
    const Tile tile = tile_at(m, t);
    float most = 0;
    for (int64_t i = threadIdx.x; i < tile.rows * tile.cols; i += blockDim.x)
      most = fmaxf(most, fabsf(x[offset(m, tile, i)]));
    const float scale = fmaxf(block_max(most) / top, kLeastScale);
    if (threadIdx.x == 0) scales[t] = scale;
    for (int64_t i = threadIdx.x; i < tile.rows * tile.cols; i += blockDim.x) {
      const int64_t at = offset(m, tile, i);
      const float value = fminf(fmaxf(x[at] / scale, -top), top);
      codes[at] = __nv_cvt_float_to_fp8(value, __NV_NOSAT, m.e5m2 ? __NV_E5M2 : __NV_E4M3);
    }
  }
}

__global__ void dequantise(float* __restrict__ out, const uint8_t* __restrict__ codes, const float* __restrict__ scales,
                           Fp8Matrix m) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < m.rows * m.cols; i += stride) {
    const __half_raw half = __nv_cvt_fp8_to_halfraw(codes[i], m.e5m2 ? __NV_E5M2 : __NV_E4M3);
    const int64_t tile = i / m.cols / m.tile_rows * across(m) + i % m.cols / m.tile_cols;
    out[i] = __half2float(half) * scales[tile];
  }
}

int grid(int64_t blocks) { return static_cast<int>(blocks < 65535 ? blocks : 65535); }

}  // namespace

cudaError_t launch_quantise_fp8(uint8_t* codes, float* scales, const float* x, Fp8Matrix matrix, cudaStream_t stream) {
  if (matrix.rows * matrix.cols == 0) return cudaSuccess;
  quantise<<<grid(count(matrix)), kBlockValues, 0, stream>>>(codes, scales, x, matrix);
  return cudaGetLastError();
}

cudaError_t launch_dequantise_fp8(float* out, const uint8_t* codes, const float* scales, Fp8Matrix matrix,
                                  cudaStream_t stream) {
  if (matrix.rows * matrix.cols == 0) return cudaSuccess;
  dequantise<<<grid(div_up(matrix.rows * matrix.cols, kBlockValues)), kBlockValues, 0, stream>>>(out, codes, scales,
                                                                                                 matrix);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
