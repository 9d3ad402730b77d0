// Attention with keys in blocks: merges the blocks' results by their log-sum-exps.
#include <ATen/Parallel.h>

#include <cmath>

#include "tessera/ops/kernel.h"
#include "tessera/ops/node.h"
#include "tessera/ops/ops.h"

namespace tessera::ops {

namespace {

/// Merges two softmaxes of the same queries over different keys.
TESSERA_KERNEL void merge_rows(float* out, float* lse, const float* part, const float* part_lse, int64_t ld,
                               int64_t rows, int64_t d) {
  for (int64_t r = 0; r < rows; ++r) {
    const float top = std::max(lse[r], part_lse[r]);
    const float a = std::exp(lse[r] - top), b = std::exp(part_lse[r] - top), whole = a + b;
    lse[r] = top + std::log(whole);
    float* __restrict to = out + r * ld;
    const float* __restrict from = part + r * ld;
#pragma omp simd
    for (int64_t i = 0; i < d; ++i) to[i] = (to[i] * a + from[i] * b) / whole;
  }
}

}  // namespace

void merge_attention(const AttentionResult& sum, const AttentionResult& part, int64_t heads) {
  if (sum.out.is_meta()) return;
  const int64_t rows = sum.out.size(0), ld = sum.out.size(1), d = ld / heads;
  at::parallel_for(0, heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h)
      merge_rows(out_data(sum.out) + h * d, out_data(sum.lse) + h * sum.lse.stride(0), data(part.out) + h * d,
                 data(part.lse) + h * part.lse.stride(0), ld, rows, d);
  });
}

}  // namespace tessera::ops
