// AdamW in one pass over memory, whatever the form of masters and moments (ops/adamw.h): each thread widens its value,
// the thread block agrees on the scales of 8-bit moments, and everything is stored again.
#include "tessera/cuda/blockwise.cuh"
#include "tessera/cuda/kernels.h"

namespace tessera::cuda {

namespace {

/// RandomKey::half_words of one element (base/random.cpp).
__device__ uint32_t half_word(const DeviceRounding& rounding, int64_t i) {
  const uint64_t element = rounding.first + static_cast<uint64_t>(i), block = element / 8;
  uint32_t c[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), rounding.words[2],
                   rounding.words[3]};
  uint32_t k0 = rounding.words[0], k1 = rounding.words[1];
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c[0]), low0 = 0xD2511F53u * c[0];
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c[2]), low1 = 0xCD9E8D57u * c[2];
    c[0] = high1 ^ c[1] ^ k0, c[1] = low1;
    c[2] = high0 ^ c[3] ^ k1, c[3] = low0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  const int half = static_cast<int>(element % 8);
  return c[half / 2] >> (half % 2 * 16) & 0xffff;
}

__device__ uint16_t round_stochastic(float x, uint32_t random) {
  const uint32_t bits = __float_as_uint(x);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u, nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>((bits >> 16) + (finite && random < (bits & 0xffffu))) | (nan ? 0x40 : 0);
}

__device__ float load(const DeviceMasters& p, int64_t i) {
  if (p.fp32) return p.fp32[i];
  if (!p.low) return widen(p.bf16[i]);
  return __uint_as_float((static_cast<uint32_t>(p.bf16[i]) - (p.low[i] >> 15)) << 16 | p.low[i]);
}

__device__ void store(const DeviceMasters& p, int64_t i, float value) {
  const uint32_t bits = __float_as_uint(value);
  if (p.fp32) {
    p.fp32[i] = value;
  } else if (p.low) {
    p.bf16[i] = static_cast<uint16_t>((bits + 0x8000u) >> 16);
    p.low[i] = static_cast<uint16_t>(bits);
  } else {
    p.bf16[i] = round_stochastic(value, half_word(p.rounding, i));
  }
}

__device__ float load(const DeviceMoment& m, int64_t i) {
  if (m.fp32) return m.fp32[i];
  return m.bf16 ? widen(m.bf16[i]) : m.map[m.codes[i]] * m.scales[i / kBlockValues];
}

/// All threads of the block call it; `inside`: this one has a value.
__device__ void store(const DeviceMoment& m, int64_t i, bool inside, bool keep_sign, float value) {
  if (m.codes) {
    const float scale = fmaxf(block_max(inside ? fabsf(value) : 0.0f), kLeastScale);
    if (threadIdx.x == 0) m.scales[i / kBlockValues] = scale;
    if (inside) m.codes[i] = map_code(m.map, m.zero, keep_sign, value / scale);
  } else if (inside && m.fp32) {
    m.fp32[i] = value;
  } else if (inside) {
    m.bf16[i] = round_stochastic(value, half_word(m.rounding, i));
  }
}

__global__ void adamw(DeviceMasters p, DeviceMoment m, DeviceMoment v, const float* __restrict__ g, int64_t n,
                      AdamWNumbers f) {
  for (int64_t block = blockIdx.x; block * kBlockValues < n; block += gridDim.x) {
    const int64_t i = block * kBlockValues + threadIdx.x;
    const bool inside = i < n;
    float first = 0, second = 0;
    if (inside) {
      const float gradient = g[i] * f.scale;
      first = load(m, i), second = load(v, i);
      first += (gradient - first) * f.take_first;
      second = second * f.keep_second + gradient * gradient * f.take_second;
      const float step = f.step_size * first / (sqrtf(second) * f.inverse_root + f.eps);
      store(p, i, (load(p, i) * f.decay_first - step) * f.decay_last);
    }
    __syncthreads();  // all have read the scales
    store(m, i, inside, f.keep_sign, first);
    store(v, i, inside, false, second);
  }
}

}  // namespace

cudaError_t launch_adamw(DeviceMasters p, DeviceMoment m, DeviceMoment v, const float* g, int64_t n,
                         AdamWNumbers numbers, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const int64_t blocks = (n + kBlockValues - 1) / kBlockValues;
  adamw<<<static_cast<int>(blocks < 65535 ? blocks : 65535), kBlockValues, 0, stream>>>(p, m, v, g, n, numbers);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
