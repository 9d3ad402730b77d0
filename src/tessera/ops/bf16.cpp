#include "tessera/ops/bf16.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "tessera/base/check.h"
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

namespace {

constexpr int64_t kInPlaceBlock = 1024;

// LibTorch's conversions are branch-free, so the loops vectorise.
TESSERA_KERNEL void from_fp16(float* __restrict out, const c10::Half* __restrict x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i]);
}

TESSERA_KERNEL void to_fp16(c10::Half* __restrict out, const float* __restrict x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = c10::Half(x[i]);
}

}  // namespace

void widen(float* out, const void* x, at::ScalarType type, int64_t n) {
  if (type == at::kBFloat16) return from_bf16(out, static_cast<const uint16_t*>(x), n);
  check_internal(type == at::kHalf, "ops.widen", "neither bf16 nor fp16");
  from_fp16(out, static_cast<const c10::Half*>(x), n);
}

void narrow(void* out, const float* x, at::ScalarType type, int64_t n) {
  if (type == at::kBFloat16) return to_bf16(static_cast<uint16_t*>(out), x, n);
  check_internal(type == at::kHalf, "ops.widen", "neither bf16 nor fp16");
  to_fp16(static_cast<c10::Half*>(out), x, n);
}

void widen_in_place(float* values, at::ScalarType type, int64_t n) {
  // Forwards: value i ends at byte 4i + 4, and unread values begin at 2n + 2i. The ranges overlap in the last block, so
  // each block is copied first.
  uint16_t block[kInPlaceBlock];
  const char* packed = reinterpret_cast<const char*>(values) + 2 * n;
  for (int64_t first = 0; first < n; first += kInPlaceBlock) {
    const int64_t count = std::min(kInPlaceBlock, n - first);
    std::memcpy(block, packed + 2 * first, 2 * count);
    widen(values + first, block, type, count);
  }
}

void narrow_in_place(float* values, at::ScalarType type, int64_t n) {
  uint16_t block[kInPlaceBlock];
  char* packed = reinterpret_cast<char*>(values);  // written values never reach unread ones
  for (int64_t first = 0; first < n; first += kInPlaceBlock) {
    const int64_t count = std::min(kInPlaceBlock, n - first);
    narrow(block, values + first, type, count);
    std::memcpy(packed + 2 * first, block, 2 * count);
  }
}

float* half_scratch(int which, int64_t n) {
  thread_local std::array<std::vector<float>, 4> buffers;
  std::vector<float>& buffer = buffers.at(static_cast<size_t>(which));
  if (static_cast<int64_t>(buffer.size()) < n) buffer.resize(static_cast<size_t>(n));
  return buffer.data();
}

}  // namespace tessera::ops
