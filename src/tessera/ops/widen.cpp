#include "tessera/ops/widen.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/kernel.h"

namespace tessera::ops {

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
