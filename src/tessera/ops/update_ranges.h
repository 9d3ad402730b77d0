#pragma once
// What an update reads and writes: masters, moments and gradients of the same elements in any of their storage formats.
//
//   adamw({.bf16 = high, .low = low}, {.codes = m, .scales = ms}, {.codes = v, .scales = vs}, g, n, step);
#include <cstdint>

#include "tessera/base/random.h"

namespace tessera::ops {

/// 16 random bits for element i of a range: those of element `first + i` of `key`.
struct Rounding {
  const RandomKey* key = nullptr;
  uint64_t first = 0;
};

/// Parameters to update. Set `fp32`; or `bf16` and `low` (split fp32, see bf16.h); or `bf16` alone, which is rounded
/// stochastically.
struct MasterRange {
  float* fp32 = nullptr;
  uint16_t* bf16 = nullptr;
  uint16_t* low = nullptr;
  Rounding rounding = {};
};

/// One moment of the same elements. Set `fp32`; or `bf16`, rounded stochastically (rounded to nearest, a second moment
/// with beta2 = 0.999 would never change, because its steps are under half an ulp); or `codes` and `scales`
/// (blockwise.h).
struct MomentRange {
  float* fp32 = nullptr;
  uint16_t* bf16 = nullptr;
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  Rounding rounding = {};
};

/// The gradient of the same elements. Set one.
struct GradientRange {
  const float* fp32 = nullptr;
  const uint16_t *bf16 = nullptr, *fp16 = nullptr;
};

}  // namespace tessera::ops
