// AdamW in one pass over memory, whatever the form of masters, moments and gradients (ops/adamw.h): each lane widens its
// eight values, the warp agrees on the scales of 8-bit moments, and everything is stored again.
#include "tessera/cuda/dynamic_map.cuh"
#include "tessera/cuda/halves.cuh"
#include "tessera/cuda/random.cuh"

namespace tessera::cuda {

namespace {

__device__ uint16_t round_stochastic(float x, uint32_t random) {
  const uint32_t bits = __float_as_uint(x);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u, nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>((bits >> 16) + (finite && random < (bits & 0xffffu))) | (nan ? 0x40 : 0);
}

__device__ void store_rounded(uint16_t* to, const float (&x)[kLaneValues], const DeviceRounding& rounding, int64_t at,
                              int count) {
  uint32_t halves[2 * kLaneValues];
  half_words(halves, rounding, rounding.first + static_cast<uint64_t>(at));
  uint16_t lane[kLaneValues];
  for (int j = 0; j < kLaneValues; ++j) lane[j] = round_stochastic(x[j], halves[j]);
  store_lane(to + at, lane, count);
}

__device__ void load(float (&x)[kLaneValues], const DeviceMasters& p, const BlockOfWarp& block) {
  if (p.fp32) return load_lane(x, p.fp32 + block.at(), block.count());
  if (!p.low) return load_widened(x, p.bf16 + block.at(), HalfType::bf16, block.count());
  uint16_t high[kLaneValues], low[kLaneValues];
  load_lane(high, p.bf16 + block.at(), block.count());
  load_lane(low, p.low + block.at(), block.count());
  for (int j = 0; j < kLaneValues; ++j)
    x[j] = __uint_as_float((static_cast<uint32_t>(high[j]) - (low[j] >> 15)) << 16 | low[j]);
}

__device__ void store(const DeviceMasters& p, const float (&x)[kLaneValues], const BlockOfWarp& block) {
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

__device__ void load(float (&x)[kLaneValues], const DeviceMoment& m, const float (&map)[256],
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
__device__ void store(const DeviceMoment& m, const float (&map)[256], bool keep_sign, const float (&x)[kLaneValues],
                      const BlockOfWarp& block) {
  if (m.fp32) return store_lane(m.fp32 + block.at(), x, block.count());
  if (m.bf16) return store_rounded(m.bf16, x, m.rounding, block.at(), block.count());
  uint8_t codes[kLaneValues];
  float scale;
  quantise_lane(codes, scale, x, map, m.zero, keep_sign);
  store_lane(m.codes + block.at(), codes, block.count());
  if (block.leads()) m.scales[block.index()] = scale;
}

__global__ void adamw(DeviceMasters p, DeviceMoment m, DeviceMoment v, const float* __restrict__ g,
                      const uint16_t* __restrict__ half_g, HalfType type, int64_t n, ops::AdamWFactors f,
                      bool keep_sign) {
  __shared__ float first_map[256], second_map[256];
  if (m.codes) load_map(first_map, m.map);
  if (v.codes) load_map(second_map, v.map);
  __syncthreads();
  for (BlockOfWarp block(n); block.inside(); block.next()) {
    float gradient[kLaneValues], first[kLaneValues], second[kLaneValues], value[kLaneValues];
    if (g)
      load_lane(gradient, g + block.at(), block.count());
    else
      load_widened(gradient, half_g + block.at(), type, block.count());
    load(first, m, first_map, block);
    load(second, v, second_map, block);
    load(value, p, block);
    for (int j = 0; j < kLaneValues; ++j) {
      const float scaled = gradient[j] * f.scale;
      first[j] += (scaled - first[j]) * f.take_first;
      second[j] = second[j] * f.keep_second + scaled * scaled * f.take_second;
      const float step = f.step_size * first[j] / (sqrtf(second[j]) * f.inverse_root + f.eps);
      value[j] = (value[j] * f.decay_first - step) * f.decay_last;
    }
    __syncwarp();  // all lanes have read the scales
    store(p, value, block);
    store(m, first_map, keep_sign, first, block);
    store(v, second_map, false, second, block);
  }
}

}  // namespace

cudaError_t launch_adamw(DeviceMasters p, DeviceMoment m, DeviceMoment v, const ops::GradientRange& g, int64_t n,
                         ops::AdamWFactors factors, bool keep_sign, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  TESSERA_LAUNCH(adamw, thread_blocks(n), kThreads, stream, p, m, v, g.fp32, g.bf16 ? g.bf16 : g.fp16,
                 g.bf16 ? HalfType::bf16 : HalfType::fp16, n, factors, keep_sign);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
