// Dropout on CPUs.
#include <ATen/Parallel.h>

#include "tessera/ops/cpu/cpu.h"

namespace tessera::ops::cpu {

void drop_rows(const Tensor& x, const Dropout& drop, int64_t first_row) {
  if (!drop.active() || x.is_meta()) return;
  auto* data = static_cast<char*>(x.mutable_data_ptr());
  const int64_t row_bytes = x.stride(0) * static_cast<int64_t>(x.element_size());
  for (const DropRange& range : drop_ranges(drop, first_row, x.size(0), x.size(1), x.stride(0)))
    at::parallel_for(0, range.rows, 16, [&](int64_t begin, int64_t end) {
      DropRange part = range;
      part.rows = end - begin, part.first += static_cast<uint64_t>(begin * range.width);
      drop_range(data + (range.row + begin) * row_bytes, x.scalar_type(), part);
    });
}

}  // namespace tessera::ops::cpu
