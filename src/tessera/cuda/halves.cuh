#pragma once
// bf16 and fp16 as 16-bit integers, converted as ops/half.h and ops/bf16.h do on an x86 processor: by integers, so that the
// bits are the same on every chip, those of NaN included.
//
//   float x[kLaneValues];
//   load_widened(x, halves + block.at(), HalfType::bf16, block.count());
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/lanes.cuh"

namespace tessera::cuda {

__device__ inline float from_bf16(uint16_t half) { return __uint_as_float(static_cast<uint32_t>(half) << 16); }

/// The nearest, the even one at ties; NaN is 0xffff.
__device__ inline uint16_t to_bf16(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0xffff;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/// The upper part of ops::split_fp32.
__device__ inline uint16_t high_half(float x) { return static_cast<uint16_t>((__float_as_uint(x) + 0x8000u) >> 16); }

/// A NaN keeps its payload and becomes quiet.
__device__ inline float from_fp16(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return __uint_as_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13 | (magnitude > 0x7c00u ? 0x400000u : 0));
  // the shifted bits are the value but for the exponent's bias, subnormals included
  return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude << 13) * 0x1p112f));
}

/// The nearest, the even one at ties; from 65520 on infinity. NaN is 0x7e00 with its sign.
__device__ inline uint16_t to_fp16(float x) {
  const uint32_t bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // under the smallest normal value: the last bit of 0.5 is the smallest subnormal
    const float rounded = __fadd_rn(__uint_as_float(magnitude), 0.5f);
    return static_cast<uint16_t>(sign | (__float_as_uint(rounded) - __float_as_uint(0.5f)));
  }
  const uint32_t biased = magnitude - ((127u - 15u) << 23);
  return static_cast<uint16_t>(sign | (biased + 0xfffu + (biased >> 13 & 1)) >> 13);
}

__device__ inline float widen(uint16_t half, HalfType type) {
  return type == HalfType::bf16 ? from_bf16(half) : from_fp16(half);
}
__device__ inline uint16_t narrow(float x, HalfType type) { return type == HalfType::bf16 ? to_bf16(x) : to_fp16(x); }

/// Values beyond `count` are zero.
__device__ inline void load_widened(float (&values)[kLaneValues], const uint16_t* from, HalfType type, int count) {
  uint16_t lane[kLaneValues];
  load_lane(lane, from, count);
  for (int j = 0; j < kLaneValues; ++j) values[j] = widen(lane[j], type);
}

__device__ inline void store_narrowed(uint16_t* to, const float (&values)[kLaneValues], HalfType type, int count) {
  uint16_t lane[kLaneValues];
  for (int j = 0; j < kLaneValues; ++j) lane[j] = narrow(values[j], type);
  store_lane(to, lane, count);
}

}  // namespace tessera::cuda
