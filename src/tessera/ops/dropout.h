#pragma once
// Dropout whose mask depends on the tokens: an element is dropped by (seed, step, sample, site, position), so the mask
// is the same on every mesh, micro-batch and recompute, and nothing is saved.
//
//   Dropout drop{.p = 0.05, .seed = 1, .step = 7, .site = hash_text("blocks.3.self_attn.q"), .runs = {{0, 96, 4, 0}}};
//   drop_rows(x, drop, 0);                         // ops.h: rows of x [T, width] scaled by 0 or 1 / (1 - p), in place
#include <cstdint>
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

struct Dropout {
  /// Rows begin..end of the operand are tokens first, first + 1, ... of a sample.
  struct Run {
    int64_t begin, end;
    uint64_t sample;
    int64_t first;
  };
  double p = 0;  ///< probability of being dropped, in steps of 1 / 65536; 0: no dropout
  uint64_t seed = 0, step = 0, site = 0;
  std::vector<Run> runs = {};  ///< ascending; they cover all rows
  int64_t width = 0;           ///< columns of the whole operand if x has only some; 0: x has all
  int64_t first_column = 0;
  bool active() const { return p > 0; }
};

}  // namespace tessera::ops
