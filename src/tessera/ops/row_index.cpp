#include "tessera/ops/row_index.h"

#include <algorithm>

#include "tessera/base/check.h"

namespace tessera::ops {

RowIndex::RowIndex(at::Tensor index) : of_token(std::move(index)) {
  check_internal(of_token.scalar_type() == at::kInt && of_token.dim() == 1 && of_token.is_contiguous() &&
                     (of_token.is_cpu() || of_token.is_meta()),
                 "ops.row_index", "the rows must be a contiguous int32 for each token in host memory");
  if (of_token.is_meta()) {
    runs = {{0, 0, of_token.size(0)}};
    return;
  }
  const auto* rows = of_token.const_data_ptr<int32_t>();
  for (int64_t t = 0; t < of_token.size(0); ++t) {
    if (runs.empty() || runs.back().row != rows[t]) runs.push_back({rows[t], t, t});
    runs.back().end = t + 1;
  }
}

RowIndex RowIndex::slice(int64_t begin, int64_t end) const {
  RowIndex part{of_token.slice(0, begin, end), {}};
  for (const RowRun& run : runs)
    if (const int64_t from = std::max(run.begin, begin), to = std::min(run.end, end); from < to)
      part.runs.push_back({run.row, from - begin, to - begin});
  return part;
}

}  // namespace tessera::ops
