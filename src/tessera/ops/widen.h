#pragma once
// Values of 16 bits (bf16, fp16) to fp32 and back. It knows LibTorch's names of types and nothing else of it.
//
//   widen(row, bytes, at::kBFloat16, n);
//   narrow(bytes, row, at::kBFloat16, n);
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace tessera::ops {

/// Converts `n` values of `type` (kBFloat16 or kHalf) to fp32, and back. In fp16, values beyond 65504 become infinite.
void widen(float* out, const void* x, at::ScalarType type, int64_t n);
void narrow(void* out, const float* x, at::ScalarType type, int64_t n);

/// The same in place. Widening: bytes [2n, 4n) have values of `type` before, [0, 4n) fp32 after; narrowing: [0, 4n)
/// have fp32 before, [0, 2n) values of `type` after.
void widen_in_place(float* values, at::ScalarType type, int64_t n);
void narrow_in_place(float* values, at::ScalarType type, int64_t n);

/// Scratch memory of this thread for `n` floats, reused; `which` in 0..3 selects separate buffers.
float* half_scratch(int which, int64_t n);

}  // namespace tessera::ops
