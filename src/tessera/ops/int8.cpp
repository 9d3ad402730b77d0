#include "tessera/ops/int8.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/kernel.h"

namespace tessera::ops {

namespace {

constexpr int64_t kGrain = 64;  // blocks a thread takes at least

TESSERA_KERNEL float scale_of(const float* x, int64_t n) {
  float largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(x[i]));
  return largest / 127;
}

TESSERA_KERNEL void round_kernel(int8_t* __restrict q, const float* __restrict x, int64_t n, float scale) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(__builtin_rintf(x[i] / scale));
    const float number = std::bit_cast<float>((bits & 0x7fffffff) > 0x7f800000 ? 0u : bits);  // NaN is 0
    q[i] = static_cast<int8_t>(std::min(std::max(static_cast<int32_t>(number), -127), 127));
  }
}

TESSERA_KERNEL void value_kernel(float* __restrict out, const int8_t* __restrict q, int64_t n, float scale) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(q[i]) * scale;
}

/// Calls `block(index, first, count)` for each block, on all threads.
template <typename Block>
void each_block(int64_t n, const Block& block) {
  at::parallel_for(0, div_up(n, kQuantBlock), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) block(b, b * kQuantBlock, std::min(kQuantBlock, n - b * kQuantBlock));
  });
}

}  // namespace

void quantise_int8(int8_t* q, float* scales, const float* x, int64_t n) {
  each_block(n, [&](int64_t b, int64_t first, int64_t count) {
    scales[b] = scale_of(x + first, count);
    if (scales[b] > 0)
      round_kernel(q + first, x + first, count, scales[b]);
    else
      std::fill_n(q + first, count, int8_t{0});
  });
}

void dequantise_int8(float* out, const int8_t* q, const float* scales, int64_t n) {
  each_block(n,
             [&](int64_t b, int64_t first, int64_t count) { value_kernel(out + first, q + first, count, scales[b]); });
}

}  // namespace tessera::ops
