#pragma once
// What the kernels over blocks of 256 values share. A thread block has 256 threads and works on one such block at a
// time, each thread on one value, which it keeps in a register between loading and storing.
//
//   const float most = block_max(fabsf(value));      // every thread gets it
#include <cstdint>

namespace tessera::cuda {

constexpr int kBlockValues = 256;
constexpr float kLeastScale = 1e-12f;

/// The largest of all threads' values. All 256 threads call it.
__device__ inline float block_max(float value) {
  __shared__ float warps[kBlockValues / 32];
  for (int lane = 16; lane > 0; lane /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lane));
  __syncthreads();  // the call before has been read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = warps[0];
  for (int w = 1; w < kBlockValues / 32; ++w) value = fmaxf(value, warps[w]);
  return value;
}

/// Index of the value of an ascending map that is nearest to x, the upper one at ties.
__device__ inline int nearest_code(const float* map, float x) {
  int code = 0;
  for (int step = 128; step > 0; step /= 2)
    if (map[code + step] <= x) code += step;
  if (code < 255 && x - map[code] >= (map[code + 1] - map[code]) * 0.5f) ++code;
  return code;
}

__device__ inline uint8_t map_code(const float* map, int zero, bool keep_sign, float x) {
  const int code = nearest_code(map, x);
  return static_cast<uint8_t>(keep_sign && code == zero && x < 0 ? code - 1 : code);
}

__device__ inline float widen(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }

}  // namespace tessera::cuda
