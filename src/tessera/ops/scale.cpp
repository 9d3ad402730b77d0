#include "tessera/ops/scale.h"

#include "tessera/ops/kernel.h"
#include "tessera/ops/node.h"

namespace tessera::ops {

namespace {

TESSERA_KERNEL void scale_kernel(float* out, const float* x, int64_t n, float factor) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = factor * x[i];
}

}  // namespace

void scale_in_place(const at::Tensor& x, double factor) {
  if (!x.is_meta()) scale_kernel(out_data(x), data(x), x.numel(), static_cast<float>(factor));
}

}  // namespace tessera::ops
