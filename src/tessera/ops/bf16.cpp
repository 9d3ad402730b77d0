#include "tessera/ops/bf16.h"

#include <algorithm>
#include <bit>

#include "tessera/ops/kernel.h"

namespace tessera::ops {

TESSERA_KERNEL void to_bf16(uint16_t* __restrict out, const float* __restrict x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    out[i] = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0xffff : rounded);
  }
}

TESSERA_KERNEL void from_bf16(float* __restrict out, const uint16_t* __restrict x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(x[i]) << 16);
}

TESSERA_KERNEL void split_fp32(uint16_t* __restrict high, uint16_t* __restrict low, const float* __restrict x,
                               int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]);
    high[i] = static_cast<uint16_t>((bits + 0x8000) >> 16);
    low[i] = static_cast<uint16_t>(bits);  // the subtraction does not change the low bits
  }
}

TESSERA_KERNEL void join_fp32(float* __restrict out, const uint16_t* __restrict high, const uint16_t* __restrict low,
                              int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    // A remainder with its sign bit set is negative: the high half was rounded up by one.
    const uint32_t carried = static_cast<uint32_t>(high[i]) - (low[i] >> 15);
    out[i] = std::bit_cast<float>(carried << 16 | low[i]);
  }
}

TESSERA_KERNEL void high_half(uint16_t* __restrict out, const float* __restrict x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<uint16_t>((std::bit_cast<uint32_t>(x[i]) + 0x8000) >> 16);
}

TESSERA_KERNEL void round_stochastic(uint16_t* __restrict out, const float* __restrict x,
                                     const uint16_t* __restrict random, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]);
    const bool finite = (bits & 0x7f800000) != 0x7f800000;
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    const uint32_t up = finite && random[i] < (bits & 0xffff) ? 1 : 0;
    // a NaN's payload may be in the truncated bits
    out[i] = static_cast<uint16_t>((bits >> 16) + up) | (nan ? 0x40 : 0);
  }
}

}  // namespace tessera::ops
