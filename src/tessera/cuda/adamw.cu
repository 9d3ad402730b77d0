// AdamW, Lion, schedule-free updates and averages in one pass over memory, whatever the form of masters, moments and gradients
// (ops/adamw.h): each lane widens its eight values, the warp agrees on the scales of 8-bit moments, and everything is stored
// again.
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

__device__ void load(float (&x)[kLaneValues], const ops::GradientRange& g, const BlockOfWarp& block) {
  if (g.fp32) return load_lane(x, g.fp32 + block.at(), block.count());
  load_widened(x, (g.bf16 ? g.bf16 : g.fp16) + block.at(), g.bf16 ? HalfType::bf16 : HalfType::fp16, block.count());
}

__global__ void __launch_bounds__(kThreads, 2)
    lion(DeviceMasters p, DeviceMoment m, ops::GradientRange g, int64_t n, ops::LionFactors f) {
  __shared__ float map[256];
  if (m.codes) load_map(map, m.map);
  __syncthreads();
  for (BlockOfWarp block(n); block.inside(); block.next()) {
    float gradient[kLaneValues], moment[kLaneValues], value[kLaneValues];
    load(gradient, g, block);
    load(moment, m, map, block);
    load(value, p, block);
    for (int j = 0; j < kLaneValues; ++j) {
      const float scaled = gradient[j] * f.scale, direction = moment[j] * f.keep_now + scaled * f.take_now;
      const float sign = static_cast<float>(direction > 0) - static_cast<float>(direction < 0);
      value[j] = value[j] * f.decay - f.step * sign;
      moment[j] = moment[j] * f.keep + scaled * f.take;
    }
    __syncwarp();  // all lanes have read the scales
    store(p, value, block);
    store(m, map, false, moment, block);
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    schedule_free(DeviceMasters p, float* __restrict__ z_of, float* __restrict__ v_of, float* __restrict__ x_of,
                  ops::GradientRange g, int64_t n, ops::ScheduleFreeFactors f) {
  for (BlockOfWarp block(n); block.inside(); block.next()) {
    float gradient[kLaneValues], y[kLaneValues], z[kLaneValues], v[kLaneValues], x[kLaneValues];
    load(gradient, g, block);
    load(y, p, block);
    load_lane(v, v_of + block.at(), block.count());
    if (!f.begins) load_lane(z, z_of + block.at(), block.count());
    if (!f.begins) load_lane(x, x_of + block.at(), block.count());
    for (int j = 0; j < kLaneValues; ++j) {
      if (f.begins) z[j] = x[j] = y[j];
      const float scaled = gradient[j] * f.scale;
      v[j] = v[j] * f.keep + scaled * scaled * f.take;
      const float direction = f.divides ? scaled / (sqrtf(v[j] * f.correction) + f.eps) : scaled;
      z[j] -= f.rate * (direction + f.decay * y[j]);
      x[j] += f.average * (z[j] - x[j]);
      y[j] = x[j] + f.inwards * (z[j] - x[j]);
    }
    store(p, y, block);
    store_lane(z_of + block.at(), z, block.count());
    store_lane(v_of + block.at(), v, block.count());
    store_lane(x_of + block.at(), x, block.count());
  }
}

__global__ void __launch_bounds__(kThreads, 4)
    move_average(float* __restrict__ average, DeviceMasters p, int64_t n, float take) {
  for (BlockOfWarp block(n); block.inside(); block.next()) {
    float now[kLaneValues], value[kLaneValues];
    load_lane(now, average + block.at(), block.count());
    load(value, p, block);
    for (int j = 0; j < kLaneValues; ++j) now[j] = take == 1 ? value[j] : now[j] - take * (now[j] - value[j]);
    store_lane(average + block.at(), now, block.count());
  }
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

cudaError_t launch_lion(DeviceMasters p, DeviceMoment m, const ops::GradientRange& g, int64_t n,
                        const ops::LionFactors& factors, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  TESSERA_LAUNCH(lion, thread_blocks(n), kThreads, stream, p, m, g, n, factors);
  return cudaGetLastError();
}

cudaError_t launch_schedule_free(DeviceMasters y, float* z, float* v, float* x, const ops::GradientRange& g, int64_t n,
                                 const ops::ScheduleFreeFactors& factors, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  TESSERA_LAUNCH(schedule_free, thread_blocks(n), kThreads, stream, y, z, v, x, g, n, factors);
  return cudaGetLastError();
}

cudaError_t launch_move_average(float* average, DeviceMasters p, int64_t n, float take, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  TESSERA_LAUNCH(move_average, thread_blocks(n), kThreads, stream, average, p, n, take);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
