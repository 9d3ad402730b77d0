#pragma once
// How CPU kernels are compiled: once for each instruction set, selected when the program starts. Loops over floats
// without intrinsics; `#pragma omp simd reduction` for sums whose order does not matter.
//
//   TESSERA_KERNEL void scale(float* __restrict x, int64_t n, float a) { for (int64_t i = 0; i < n; ++i) x[i] *= a; }
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tessera/base/check.h"

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define TESSERA_KERNEL __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define TESSERA_KERNEL
#endif

namespace tessera::ops {

/// Calls each(at, count) for blocks of so many elements, on all threads, of which each has `grain` elements at least. Blocks are
/// independent, so the result does not depend on the number of threads.
template <class Each>
void each_block(int64_t n, int64_t block, int64_t grain, const Each& each) {
  at::parallel_for(0, div_up(n, block), grain / block, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * block; at < std::min(n, end * block); at += block) each(at, std::min(block, n - at));
  });
}

/// e^x to 2 ulp without a branch, so that loops vectorise (libm's does not without -ffast-math). Clamped at e^-87 and
/// e^88; NaN stays NaN. Cody-Waite reduction, minimax polynomial of Cephes.
[[gnu::always_inline]] inline float exp_fast(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float n = __builtin_rintf(x * 1.44269504f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return p * power;
}

}  // namespace tessera::ops
