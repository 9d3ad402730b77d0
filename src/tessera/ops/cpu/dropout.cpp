// Dropout on CPUs.
#include <ATen/Parallel.h>

#include <cmath>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/node.h"

namespace tessera::ops::cpu {

namespace {

/// Keeps and scales x[i] if words[i] >= border.
void apply_mask(float* x, const uint16_t* words, int64_t n, uint32_t border, float scale) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = words[i] >= border ? x[i] * scale : 0.0f;
}

const Dropout::Run& run_of(const Dropout& drop, int64_t row) {
  for (const Dropout::Run& run : drop.runs)
    if (row >= run.begin && row < run.end) return run;
  throw InternalError("ops.dropout", "row " + std::to_string(row) + " belongs to no sample");
}

}  // namespace

void drop_rows(const Tensor& x, const Dropout& drop, int64_t first_row) {
  if (!drop.active() || x.is_meta()) return;
  const int64_t cols = x.size(1), width = drop.width > 0 ? drop.width : cols;
  const auto border = static_cast<uint32_t>(std::lround(drop.p * 65536));
  // Scaled by the inverse of the exact probability of the border, so that the expectation is exact.
  const auto scale = static_cast<float>(65536.0 / (65536.0 - border));
  float* values = out_data(x);
  at::parallel_for(0, x.size(0), 16, [&](int64_t begin, int64_t end) {
    std::vector<uint16_t> words(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      const Dropout::Run& run = run_of(drop, first_row + r);
      const RandomKey key(drop.seed, Purpose::dropout, drop.step, drop.site ^ (run.sample * 0x9E3779B97F4A7C15ull));
      const auto place = static_cast<uint64_t>(run.first + first_row + r - run.begin);
      key.half_words(words.data(), place * static_cast<uint64_t>(width) + static_cast<uint64_t>(drop.first_column),
                     words.size());
      apply_mask(values + r * x.stride(0), words.data(), cols, border, scale);
    }
  });
}

}  // namespace tessera::ops::cpu
