#pragma once
// Blocks of an update on the CPU, in the L1 cache: values are widened, updated, and stored again. fp32 ranges are updated
// in place. Internal to updates.
//
//   float block[kUpdateBlock];
//   float* values = load(masters, block, at, count);      // at: a multiple of kUpdateBlock
//   ... values[i] ...
//   store(masters, values, at, count);
#include "tessera/ops/bf16.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/update_ranges.h"

namespace tessera::ops {

inline constexpr int64_t kUpdateBlock = kQuantBlock;

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
