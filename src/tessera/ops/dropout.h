#pragma once
// Dropout whose mask depends on the tokens: an element is dropped by (seed, step, sample, site, position), so the mask
// is the same on every mesh, micro-batch and recompute, and nothing is saved.
//
//   Dropout drop{.p = 0.05, .seed = 1, .step = 7, .site = hash_text("blocks.3.self_attn.q"), .runs = {{0, 96, 4, 0}}};
//   drop_rows(x, drop, 0);                         // ops.h: rows of x [T, width] scaled by 0 or 1 / (1 - p), in place
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "tessera/base/random.h"

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
  bool alike = false;  ///< all rows of a sample have one mask
  double whole = 0;    ///< with `alike`: probability that a sample has nothing left, whatever p is; scales nothing
  bool active() const { return p > 0 || whole > 0; }
};

/// Rows that have one key. Element (r, c), at r * stride + c, becomes 0 where half-word first + r * width + c of the key is
/// below `border`, else it is scaled. Width 0: all rows alike.
struct DropRange {
  int64_t row, rows, cols, stride, width;  ///< row: of x, where the range begins
  uint64_t first;
  RandomKey key;
  uint32_t border;
  float scale;
};

/// Of x [rows, cols], whose row 0 is row `first_row` of what the dropout's runs describe. Throws where a row has no run.
std::vector<DropRange> drop_ranges(const Dropout& drop, int64_t first_row, int64_t rows, int64_t cols, int64_t stride);

/// `x`: the first element of the range, fp32 or 16 bits (computed in fp32, rounded to nearest even).
void drop_range(void* x, c10::ScalarType type, const DropRange& range);

}  // namespace tessera::ops
