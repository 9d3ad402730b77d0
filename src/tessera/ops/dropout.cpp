#include "tessera/ops/dropout.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/ops/half.h"

namespace tessera::ops {

namespace {

/// Keeps and scales x[i] if words[i] >= border.
void apply_mask(float* x, const uint16_t* words, int64_t n, uint32_t border, float scale) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = words[i] >= border ? x[i] * scale : 0.0f;
}

}  // namespace

std::vector<DropRange> drop_ranges(const Dropout& drop, int64_t first_row, int64_t rows, int64_t cols, int64_t stride) {
  const int64_t width = drop.alike ? 0 : drop.width > 0 ? drop.width : cols;
  const auto border = static_cast<uint32_t>(std::lround(drop.p * 65536));
  constexpr uint32_t kAll = 65536;  // a border that no half-word reaches
  constexpr uint64_t kWholeDraw = ~uint64_t{0};
  // Scaled by the inverse of the exact probability of the border, so that the expectation is exact.
  const auto scale = static_cast<float>(65536.0 / (65536.0 - border));
  std::vector<DropRange> ranges;
  int64_t next = first_row;
  for (const Dropout::Run& run : drop.runs) {
    const int64_t begin = std::max(run.begin, first_row), end = std::min(run.end, first_row + rows);
    if (begin >= end) continue;
    check_internal(begin == next, "ops.dropout", "row " + std::to_string(next) + " belongs to no sample");
    const auto place = static_cast<uint64_t>(run.first + begin - run.begin);
    const RandomKey key(drop.seed, Purpose::dropout, drop.step, drop.site ^ (run.sample * 0x9E3779B97F4A7C15ull));
    const bool nothing_left = drop.whole > 0 && key.uniform(kWholeDraw) < drop.whole;
    ranges.push_back({.row = begin - first_row,
                      .rows = end - begin,
                      .cols = cols,
                      .stride = stride,
                      .width = width,
                      .first = place * static_cast<uint64_t>(width) + static_cast<uint64_t>(drop.first_column),
                      .key = key,
                      .border = nothing_left ? kAll : border,
                      .scale = scale});
    next = end;
  }
  check_internal(next == first_row + rows, "ops.dropout", "row " + std::to_string(next) + " belongs to no sample");
  return ranges;
}

void drop_range(void* x, c10::ScalarType type, const DropRange& range) {
  const auto cols = static_cast<size_t>(range.cols);
  std::vector<uint16_t> words(cols);
  std::vector<float> wide(type == c10::kFloat ? 0 : cols);
  for (int64_t r = 0; r < range.rows; ++r) {
    range.key.half_words(words.data(), range.first + static_cast<uint64_t>(r * range.width), cols);
    if (type == c10::kFloat) {
      apply_mask(static_cast<float*>(x) + r * range.stride, words.data(), range.cols, range.border, range.scale);
      continue;
    }
    auto* halves = static_cast<uint16_t*>(x) + r * range.stride;
    widen(wide.data(), halves, type, range.cols);
    apply_mask(wide.data(), words.data(), range.cols, range.border, range.scale);
    narrow(halves, wide.data(), type, range.cols);
  }
}

}  // namespace tessera::ops
