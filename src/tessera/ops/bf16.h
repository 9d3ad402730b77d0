#pragma once
// bf16 values as 16 bits, and the ways an fp32 value goes into them: rounded to nearest even, split into a bf16 and the
// exact rest of 16 bits, or rounded stochastically. Flat ranges, one thread; callers share them out.
//
//   split_fp32(high, low, values, n);              // high is what computes, both together are the fp32 value
//   join_fp32(values, high, low, n);               // bit for bit what was split
#include <cstdint>

namespace tessera::ops {

/// Round to nearest even, as LibTorch's cast; a NaN becomes 0xffff.
void to_bf16(uint16_t* out, const float* x, int64_t n);
void from_bf16(float* out, const uint16_t* x, int64_t n);

/// high = (bits + 0x8000) >> 16, low = bits - (high << 16): round half up, because nearest even overflows the rest at
/// ties. `low` is a two's complement number of 16 bits. NaN survives the round trip, not the look at `high` alone.
void split_fp32(uint16_t* high, uint16_t* low, const float* x, int64_t n);
void join_fp32(float* out, const uint16_t* high, const uint16_t* low, int64_t n);
/// What split_fp32 gives as `high`.
void high_half(uint16_t* out, const float* x, int64_t n);

/// Truncates, and adds one bf16 ulp away from zero where random[i] < the 16 bits cut off: E[out] = x, values that bf16
/// holds never change. Infinite and NaN are truncated (a NaN stays one).
void round_stochastic(uint16_t* out, const float* x, const uint16_t* random, int64_t n);

}  // namespace tessera::ops
