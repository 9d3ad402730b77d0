#pragma once
// Which row of a modulation table [R, D] each token uses. Packed tokens of one sample, or of one of its frames, follow
// one another, so the index is a few runs, which the host knows: kernels of GPUs work run by run, in a fixed order,
// without reading the index back.
//
//   RowIndex rows(index);                          // int32 [T] on the host: 0 0 0 1 1 -> runs {0, 0, 3}, {1, 3, 5}
//   RowIndex here = rows.slice(2, 5);              // the tokens [2, 5)
//   rows.of_token = rows.of_token.to(device);
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Tokens [begin, end) use row `row`.
struct RowRun {
  int64_t row, begin, end;
  bool operator==(const RowRun&) const = default;
};

struct RowIndex {
  RowIndex() = default;
  /// From an int32 [T] in host memory. A meta tensor has no values: one run.
  explicit RowIndex(at::Tensor of_token);
  RowIndex(at::Tensor of_token, std::vector<RowRun> runs) : of_token(std::move(of_token)), runs(std::move(runs)) {}

  at::Tensor of_token;       ///< int32 [T], on the device of the operands
  std::vector<RowRun> runs;  ///< ascending, without gaps

  bool defined() const { return of_token.defined(); }
  RowIndex slice(int64_t begin, int64_t end) const;
};

}  // namespace tessera::ops
