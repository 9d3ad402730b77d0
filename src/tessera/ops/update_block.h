#pragma once
// What an update reads and writes: masters, moments and gradients of the same elements in any of their storage formats.
//
//   adamw({.bf16 = high, .low = low}, {.codes = m, .scales = ms}, {.codes = v, .scales = vs}, g, n, step);
#include <cstdint>

#include "tessera/base/random.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/blockwise.h"

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

// Blocks of an update on the CPU, in the L1 cache: values are widened, updated, and stored again. fp32 ranges are updated
// in place. Internal to updates.
//
//   each_block(n, kUpdateBlock, kUpdateGrain, [&](int64_t at, int64_t count) {
//     float block[kUpdateBlock];
//     float* values = load(masters, block, at, count);
//     ... values[i] ...
//     store(masters, values, at, count);
//   });

inline constexpr int64_t kUpdateBlock = kQuantBlock;
inline constexpr int64_t kUpdateGrain = 1
                                        << 16;  ///< least number of elements of a thread, and those of one partial sum

const float* load(const GradientRange& g, float* block, int64_t at, int64_t n);

inline void store_rounded(uint16_t* out, const float* x, const Rounding& rounding, int64_t at, int64_t n) {
  uint16_t random[kUpdateBlock];
  rounding.key->half_words(random, rounding.first + static_cast<uint64_t>(at), static_cast<size_t>(n));
  round_stochastic(out, x, random, n);
}

inline float* load(const MasterRange& p, float* block, int64_t at, int64_t n) {
  if (p.fp32) return p.fp32 + at;
  if (p.low)
    join_fp32(block, p.bf16 + at, p.low + at, n);
  else
    from_bf16(block, p.bf16 + at, n);
  return block;
}

inline void store(const MasterRange& p, const float* block, int64_t at, int64_t n) {
  if (p.fp32) return;
  if (p.low)
    split_fp32(p.bf16 + at, p.low + at, block, n);
  else
    store_rounded(p.bf16 + at, block, p.rounding, at, n);
}

inline float* load(const MomentRange& m, const DynamicMap& map, float* block, int64_t at, int64_t n) {
  if (m.fp32) return m.fp32 + at;
  if (m.bf16)
    from_bf16(block, m.bf16 + at, n);
  else
    map.dequantise(block, m.codes + at, m.scales[at / kUpdateBlock], n);
  return block;
}

inline void store(const MomentRange& m, const DynamicMap& map, bool keep_sign, const float* block, int64_t at,
                  int64_t n) {
  if (m.fp32) return;
  if (m.bf16)
    store_rounded(m.bf16 + at, block, m.rounding, at, n);
  else
    map.quantise(m.codes + at, m.scales + at / kUpdateBlock, block, n, keep_sign);
}

}  // namespace tessera::ops
