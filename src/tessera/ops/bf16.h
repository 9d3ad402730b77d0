#pragma once
// bf16 values as 16-bit integers, and conversions from fp32: rounded to nearest even, split into bf16 and an exact
// 16-bit remainder, or rounded stochastically. Flat ranges, one thread; callers divide the work.
//
//   split_fp32(high, low, values, n);              // high is computed with; both together are the fp32 value
//   join_fp32(values, high, low, n);               // bit for bit the values before the split
#include <cstdint>

namespace tessera::ops {

/// Rounds to nearest even, as LibTorch's cast; a NaN becomes 0xffff.
void to_bf16(uint16_t* out, const float* x, int64_t n);
void from_bf16(float* out, const uint16_t* x, int64_t n);

/// high = (bits + 0x8000) >> 16, low = bits - (high << 16): rounds half up, because with nearest even the remainder
/// would overflow at ties. `low` is a 16-bit two's complement number. A NaN survives the round trip, but not in `high`
/// alone.
void split_fp32(uint16_t* high, uint16_t* low, const float* x, int64_t n);
void join_fp32(float* out, const uint16_t* high, const uint16_t* low, int64_t n);
/// The `high` part of split_fp32.
void high_half(uint16_t* out, const float* x, int64_t n);

/// Truncates, and adds one bf16 ulp away from zero if random[i] < the 16 truncated bits: E[out] = x, and values
/// representable in bf16 never change. Infinite and NaN are truncated (a NaN stays NaN).
void round_stochastic(uint16_t* out, const float* x, const uint16_t* random, int64_t n);

}  // namespace tessera::ops
