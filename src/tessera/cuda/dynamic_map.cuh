#pragma once
// The 8-bit map of ops/blockwise.h: a code is the index of the nearest of 256 ascending values, which a thread block has
// in shared memory.
#include "tessera/cuda/lanes.cuh"

namespace tessera::cuda {

constexpr float kLeastScale = 1e-12f;

/// Every thread of the block calls it, and then __syncthreads().
__device__ inline void load_map(float (&shared)[256], const float* map) {
  static_assert(kThreads == 256, "one value a thread");
  shared[threadIdx.x] = map[threadIdx.x];
}

/// The code nearest to x, the upper one at ties; NaN has 255, as on the CPU.
__device__ inline int nearest_code(const float (&map)[256], float x) {
  if (x != x) return 255;
  int code = 0;
  for (int step = 128; step > 0; step /= 2)
    if (map[code + step] <= x) code += step;
  if (code < 255 && x - map[code] >= (map[code + 1] - map[code]) * 0.5f) ++code;
  return code;
}

/// ops::DynamicMap::quantise of a warp's block. All lanes call it.
__device__ inline void quantise_lane(uint8_t (&codes)[kLaneValues], float& scale, const float (&x)[kLaneValues],
                                     const float (&map)[256], int zero, bool keep_sign) {
  scale = fmaxf(warp_max(largest_magnitude(x)), kLeastScale);
  for (int j = 0; j < kLaneValues; ++j) {
    const float value = x[j] / scale;
    const int code = nearest_code(map, value);
    codes[j] = static_cast<uint8_t>(keep_sign && code == zero && value < 0 ? code - 1 : code);
  }
}

__device__ inline void dequantise_lane(float (&x)[kLaneValues], const uint8_t (&codes)[kLaneValues], float scale,
                                       const float (&map)[256]) {
  for (int j = 0; j < kLaneValues; ++j) x[j] = map[codes[j]] * scale;
}

}  // namespace tessera::cuda
