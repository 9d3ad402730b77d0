#include "tessera/ops/blockwise.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tessera/base/check.h"
#include "tessera/ops/kernel.h"

namespace tessera::ops {

namespace {

constexpr float kLeastScale = 1e-12f;
constexpr int64_t kBlockwiseGrain = 64;  // minimum number of blocks a thread processes

// Buckets by sign, exponent and seven mantissa bits. Below 2^-23 everything rounds to 0 (the smallest value of either
// map is over 3e-7); a magnitude of 1, the maximum, has the last bucket.
constexpr int32_t kFirstBucket = (127 - 23) << 7, kBuckets = 23 * 128 + 1;

TESSERA_KERNEL float largest_magnitude(const float* x, int64_t n) {
  float largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(x[i]));
  return largest;
}

TESSERA_KERNEL void code_kernel(uint8_t* __restrict out, const float* __restrict x, int64_t n, float scale,
                                const float* __restrict thresholds, const int32_t* __restrict codes,
                                int32_t never_negative) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float value = x[i] / scale;
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const int32_t negative = value < 0 ? 1 : 0;  // the sign of a NaN is the processor's; all of them have the last code
    int32_t bucket = static_cast<int32_t>((bits & 0x7fffffff) >> 16) - kFirstBucket;
    bucket = bucket < 0 ? 0 : bucket;
    bucket = bucket >= kBuckets ? kBuckets - 1 : bucket;
    bucket += negative * kBuckets;
    const int32_t away = std::abs(value) >= thresholds[bucket] ? 1 : 0;
    int32_t code = codes[bucket] + (negative ? -away : away);
    code -= (code == never_negative && value < 0) ? 1 : 0;
    out[i] = static_cast<uint8_t>(code);
  }
}

TESSERA_KERNEL void value_kernel(float* __restrict out, const uint8_t* __restrict codes, int64_t n, float scale,
                                 const float* __restrict values) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = values[codes[i]] * scale;
}

/// Whether x, between two neighbours of a map, rounds to the upper one; ties do.
bool rounds_up(float x, float lower, float upper) { return x - lower >= (upper - lower) * 0.5f; }

/// The smallest float that rounds up from `lower`.
float border(float lower, float upper) {
  float x = static_cast<float>((static_cast<double>(lower) + upper) / 2);
  while (rounds_up(x, lower, upper)) x = std::nextafter(x, -2.0f);
  while (!rounds_up(x, lower, upper)) x = std::nextafter(x, 2.0f);
  return x;
}

}  // namespace

DynamicMap::DynamicMap(bool with_sign) {
  // Decade i, from 1e-7 up, has 2^i parts (2^(i+1) in the unsigned map), each represented by its middle. Computed in
  // fp32 as in the references (torch.linspace: from the nearer end, one rounding), so that all bits are equal.
  std::vector<float> values = {0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int parts = 1 << (with_sign ? decade : decade + 1);
    const float step = (1.0f - 0.1f) / static_cast<float>(parts);
    const auto cut = [&](int k) {
      return k < (parts + 1) / 2 ? std::fma(step, static_cast<float>(k), 0.1f)
                                 : std::fma(-step, static_cast<float>(parts - k), 1.0f);
    };
    for (int part = 0; part < parts; ++part) {
      const float middle = (cut(part) + cut(part + 1)) / 2 * static_cast<float>(std::pow(10.0, decade - 6));
      values.push_back(middle);
      if (with_sign) values.push_back(-middle);
    }
  }
  std::sort(values.begin(), values.end());
  check_internal(values.size() == values_.size(), "ops.blockwise", "a dynamic map has 256 values");
  std::copy(values.begin(), values.end(), values_.begin());
  zero_ = static_cast<int>(std::find(values_.begin(), values_.end(), 0.0f) - values_.begin());
  fill_buckets();
}

void DynamicMap::fill_buckets() {
  constexpr float kNone = std::numeric_limits<float>::infinity();
  const auto bucket_of = [](float magnitude) {
    return std::clamp(static_cast<int32_t>(std::bit_cast<uint32_t>(magnitude) >> 16) - kFirstBucket, 0, kBuckets - 1);
  };
  thresholds_.assign(2 * kBuckets, kNone);
  codes_.assign(2 * kBuckets, 0);
  const auto fill = [&](int sign, int from, int step) {
    const int first = sign < 0 ? kBuckets : 0;
    int code = from, filled = 0;
    // Each border, in order away from zero, ends the buckets of the code before it.
    for (; code + step >= 0 && code + step < 256; code += step) {
      const float up = border(values_[std::min(code, code + step)], values_[std::max(code, code + step)]);
      // For negative values the border itself belongs to the code nearer to zero.
      const float magnitude = sign > 0 ? up : std::nextafter(-up, 2.0f);
      const int bucket = bucket_of(magnitude);
      check_internal(bucket >= filled, "ops.blockwise", "two borders of a dynamic map fell into one bucket");
      while (filled <= bucket) codes_[first + filled++] = code;
      thresholds_[first + bucket] = magnitude;
    }
    while (filled < kBuckets) codes_[first + filled++] = code;
  };
  fill(1, zero_, 1);
  fill(-1, zero_, -1);
}

const DynamicMap& DynamicMap::with_sign() {
  static const DynamicMap map(true);
  return map;
}
const DynamicMap& DynamicMap::without_sign() {
  static const DynamicMap map(false);
  return map;
}

void DynamicMap::quantise(uint8_t* codes, float* scale, const float* x, int64_t n, bool keep_sign) const {
  *scale = std::max(largest_magnitude(x, n), kLeastScale);
  code_kernel(codes, x, n, *scale, thresholds_.data(), codes_.data(), keep_sign ? zero_ : -1);
}

void DynamicMap::dequantise(float* out, const uint8_t* codes, float scale, int64_t n) const {
  value_kernel(out, codes, n, scale, values_.data());
}

void quantise_blocks(uint8_t* codes, float* scales, const float* x, int64_t n, const DynamicMap& map) {
  at::parallel_for(0, div_up(n, kQuantBlock), kBlockwiseGrain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      map.quantise(codes + b * kQuantBlock, scales + b, x + b * kQuantBlock,
                   std::min(kQuantBlock, n - b * kQuantBlock));
  });
}

void dequantise_blocks(float* out, const uint8_t* codes, const float* scales, int64_t n, const DynamicMap& map) {
  at::parallel_for(0, div_up(n, kQuantBlock), kBlockwiseGrain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      map.dequantise(out + b * kQuantBlock, codes + b * kQuantBlock, scales[b],
                     std::min(kQuantBlock, n - b * kQuantBlock));
  });
}

}  // namespace tessera::ops
