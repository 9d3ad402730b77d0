#include "tessera/ops/dropout.h"

#include "tessera/ops/kernels.h"

namespace tessera::ops {

void drop_rows(const Tensor& x, const Dropout& drop, int64_t first_row) { kernels(x).drop_rows(x, drop, first_row); }

}  // namespace tessera::ops
