#pragma once
// Masters, moments and gradients in any of their storage formats (ops/update_block.h), as the eight values of a lane.
//
//   float value[kLaneValues], moment[kLaneValues];
//   load(value, masters, block), load(moment, first, map, block);     // map: in shared memory, of 8-bit moments
//   __syncwarp();                                                     // all lanes have read the scales
//   store(masters, value, block), store(first, map, keep_sign, moment, block);
#include "tessera/cuda/dynamic_map.cuh"
#include "tessera/cuda/halves.cuh"
#include "tessera/cuda/random.cuh"

namespace tessera::cuda {

__device__ inline uint16_t round_stochastic(float x, uint32_t random) {
  const uint32_t bits = __float_as_uint(x);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u, nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>((bits >> 16) + (finite && random < (bits & 0xffffu))) | (nan ? 0x40 : 0);
}

__device__ inline void store_rounded(uint16_t* to, const float (&x)[kLaneValues], const DeviceRounding& rounding,
                                     int64_t at, int count) {
  uint32_t halves[2 * kLaneValues];
  half_words(halves, rounding, rounding.first + static_cast<uint64_t>(at));
  uint16_t lane[kLaneValues];
  for (int j = 0; j < kLaneValues; ++j) lane[j] = round_stochastic(x[j], halves[j]);
  store_lane(to + at, lane, count);
}

__device__ inline void load(float (&x)[kLaneValues], const DeviceMasters& p, const BlockOfWarp& block) {
  if (p.fp32) return load_lane(x, p.fp32 + block.at(), block.count());
  if (!p.low) return load_widened(x, p.bf16 + block.at(), HalfType::bf16, block.count());
  uint16_t high[kLaneValues], low[kLaneValues];
  load_lane(high, p.bf16 + block.at(), block.count());
  load_lane(low, p.low + block.at(), block.count());
  for (int j = 0; j < kLaneValues; ++j)
    x[j] = __uint_as_float((static_cast<uint32_t>(high[j]) - (low[j] >> 15)) << 16 | low[j]);
}

__device__ inline void store(const DeviceMasters& p, const float (&x)[kLaneValues], const BlockOfWarp& block) {
  if (p.fp32) return store_lane(p.fp32 + block.at(), x, block.count());
  if (!p.low) return store_rounded(p.bf16, x, p.rounding, block.at(), block.count());
  uint16_t high[kLaneValues], low[kLaneValues];
  for (int j = 0; j < kLaneValues; ++j) {
    const uint32_t bits = __float_as_uint(x[j]);
    high[j] = static_cast<uint16_t>((bits + 0x8000u) >> 16);
    low[j] = static_cast<uint16_t>(bits);
  }
  store_lane(p.bf16 + block.at(), high, block.count());
  store_lane(p.low + block.at(), low, block.count());
}

__device__ inline void load(float (&x)[kLaneValues], const DeviceMoment& m, const float (&map)[256],
                            const BlockOfWarp& block) {
  if (m.fp32) return load_lane(x, m.fp32 + block.at(), block.count());
  if (m.bf16) return load_widened(x, m.bf16 + block.at(), HalfType::bf16, block.count());
  uint8_t codes[kLaneValues];
  load_lane(codes, m.codes + block.at(), block.count());
  dequantise_lane(x, codes, m.scales[block.index()], map);
  for (int j = 0; j < kLaneValues; ++j)
    if (j >= block.count()) x[j] = 0;  // code 0 is the least value of the map, and would count in the scale
}

/// All lanes call it, also those without values.
__device__ inline void store(const DeviceMoment& m, const float (&map)[256], bool keep_sign,
                             const float (&x)[kLaneValues], const BlockOfWarp& block) {
  if (m.fp32) return store_lane(m.fp32 + block.at(), x, block.count());
  if (m.bf16) return store_rounded(m.bf16, x, m.rounding, block.at(), block.count());
  uint8_t codes[kLaneValues];
  float scale;
  quantise_lane(codes, scale, x, map, m.zero, keep_sign);
  store_lane(m.codes + block.at(), codes, block.count());
  if (block.leads()) m.scales[block.index()] = scale;
}

__device__ inline void load(float (&x)[kLaneValues], const ops::GradientRange& g, const BlockOfWarp& block) {
  if (g.fp32) return load_lane(x, g.fp32 + block.at(), block.count());
  load_widened(x, (g.bf16 ? g.bf16 : g.fp16) + block.at(), g.bf16 ? HalfType::bf16 : HalfType::fp16, block.count());
}

}  // namespace tessera::cuda
