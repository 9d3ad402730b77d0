#include "tessera/ops/eight_bit.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/kernel.h"

namespace tessera::ops {

namespace {

constexpr int64_t kGrain = 64;  // blocks a thread takes at least

TESSERA_KERNEL float scale_of(const float* x, int64_t n) {
  float largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(x[i]));
  return largest / 127;
}

TESSERA_KERNEL void round_kernel(int8_t* __restrict q, const float* __restrict x, int64_t n, float scale) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(__builtin_rintf(x[i] / scale));
    const float number = std::bit_cast<float>((bits & 0x7fffffff) > 0x7f800000 ? 0u : bits);  // NaN is 0
    q[i] = static_cast<int8_t>(std::min(std::max(static_cast<int32_t>(number), -127), 127));
  }
}

TESSERA_KERNEL void value_kernel(float* __restrict out, const int8_t* __restrict q, int64_t n, float scale) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(q[i]) * scale;
}

/// Calls `block(index, first, count)` for each block, on all threads.
template <typename Block>
void each_block(int64_t n, const Block& block) {
  at::parallel_for(0, div_up(n, kQuantBlock), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) block(b, b * kQuantBlock, std::min(kQuantBlock, n - b * kQuantBlock));
  });
}

}  // namespace

void quantise_int8(int8_t* q, float* scales, const float* x, int64_t n) {
  each_block(n, [&](int64_t b, int64_t first, int64_t count) {
    scales[b] = scale_of(x + first, count);
    if (scales[b] > 0)
      round_kernel(q + first, x + first, count, scales[b]);
    else
      std::fill_n(q + first, count, int8_t{0});
  });
}

void dequantise_int8(float* out, const int8_t* q, const float* scales, int64_t n) {
  each_block(n,
             [&](int64_t b, int64_t first, int64_t count) { value_kernel(out + first, q + first, count, scales[b]); });
}

namespace {

constexpr float kLeastFp8Scale = 1e-12f;

/// The fields of a small float format. A float's bits are shifted right until `mantissa` mantissa bits are left; values
/// that are subnormal in the small format are rounded by adding a number whose last bit is the smallest subnormal.
struct Form {
  int mantissa;        // bits
  uint32_t normal;     // float bits of the smallest normal value
  uint32_t overflow;   // float bits from which on the result is `beyond`
  uint32_t magic;      // float bits of the number added to subnormals
  uint32_t rebias;     // added to the bits of normal values: the difference of the exponent biases
  uint32_t beyond;     // code of values that are too large; NaN is 0x7f
  uint32_t nan_above;  // float bits above which it is NaN
};
constexpr uint32_t kInfinity = 0x7f800000;
constexpr Form kE4M3 = {3, 121u << 23, 1087u << 20, 141u << 23, (7u - 127u) << 23, 0x7f, 0};
constexpr Form kE5M2 = {2, 113u << 23, 143u << 23, 134u << 23, (15u - 127u) << 23, 0x7c, kInfinity};
constexpr const Form& form_of(DType format) { return format == DType::f8_e4m3 ? kE4M3 : kE5M2; }

[[gnu::always_inline]] inline uint8_t encode(float x, Form f) {
  const uint32_t all = std::bit_cast<uint32_t>(x), sign = all >> 24 & 0x80, bits = all & 0x7fffffff;
  const int shift = 23 - f.mantissa;
  const uint32_t half = (1u << (shift - 1)) - 1, odd = bits >> shift & 1;
  const uint32_t normal = (bits + f.rebias + half + odd) >> shift;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + std::bit_cast<float>(f.magic)) - f.magic;
  uint32_t code = bits < f.normal ? subnormal : normal;
  code = bits >= f.overflow ? f.beyond : code;
  code = bits > kInfinity ? 0x7f : code;
  return static_cast<uint8_t>(code | sign);
}

[[gnu::always_inline]] inline float decode(uint8_t code, Form f) {
  // The shifted bits are the value except for the exponent bias, which a multiplication corrects, subnormals included.
  const uint32_t sign = (code & 0x80u) << 24, magnitude = code & 0x7f;
  const float scale = std::bit_cast<float>((127u << 23) - f.rebias);
  uint32_t bits = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << (23 - f.mantissa)) * scale);
  const bool nan = f.nan_above ? magnitude > f.beyond : magnitude == f.beyond;
  bits = nan ? 0x7f800000u | 1u << 22 : bits;
  bits = !nan && f.nan_above && magnitude == f.beyond ? kInfinity : bits;
  return std::bit_cast<float>(bits | sign);
}

TESSERA_KERNEL void encode_e4m3(uint8_t* __restrict codes, const float* __restrict x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) codes[i] = encode(x[i], kE4M3);
}
TESSERA_KERNEL void encode_e5m2(uint8_t* __restrict codes, const float* __restrict x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) codes[i] = encode(x[i], kE5M2);
}
TESSERA_KERNEL void decode_e4m3(float* __restrict out, const uint8_t* __restrict codes, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = decode(codes[i], kE4M3);
}
TESSERA_KERNEL void decode_e5m2(float* __restrict out, const uint8_t* __restrict codes, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = decode(codes[i], kE5M2);
}
TESSERA_KERNEL float magnitude_of(const float* x, int64_t n) {
  float most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::abs(x[i]));
  return most;
}
TESSERA_KERNEL void divide_kernel(float* __restrict out, const float* __restrict x, int64_t n, float scale,
                                  float most) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(std::min(std::max(x[i] / scale, -most), most));
    // one NaN for all: the sign of a NaN is the processor's
    out[i] = std::bit_cast<float>((bits & 0x7fffffff) > kInfinity ? kInfinity | 1u << 22 : bits);
  }
}
TESSERA_KERNEL void divide_each_kernel(float* __restrict out, const float* __restrict x, const float* __restrict scales,
                                       int64_t n, float most) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(std::min(std::max(x[i] / scales[i], -most), most));
    out[i] = std::bit_cast<float>((bits & 0x7fffffff) > kInfinity ? kInfinity | 1u << 22 : bits);
  }
}
TESSERA_KERNEL void multiply_kernel(float* x, int64_t n, float scale) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] *= scale;
}

constexpr int64_t kFp8Block = 512;  ///< number of values that stay in the L1 cache between two kernels

/// Calls `run(offset, count, tile, index)` for each run of a row within a tile, with rows divided among threads.
template <typename Run>
void each_run(const Fp8Tiles& t, const Run& run) {
  const int64_t grain = std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, t.cols));
  at::parallel_for(0, t.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < t.across(); ++c)
        run(r * t.cols + c * t.tile_cols, std::min(t.tile_cols, t.cols - c * t.tile_cols),
            r / t.tile_rows * t.across() + c, r * t.across() + c);
  });
}

}  // namespace

float largest(DType format) { return format == DType::f8_e4m3 ? 448.0f : 57344.0f; }

void to_fp8(uint8_t* codes, const float* x, int64_t n, DType format) {
  format == DType::f8_e4m3 ? encode_e4m3(codes, x, n) : encode_e5m2(codes, x, n);
}

void from_fp8(float* out, const uint8_t* codes, int64_t n, DType format) {
  format == DType::f8_e4m3 ? decode_e4m3(out, codes, n) : decode_e5m2(out, codes, n);
}

float fp8_scale(float largest_magnitude, DType format) {
  return std::max(largest_magnitude / largest(format), kLeastFp8Scale);
}

void quantise_fp8_by(uint8_t* codes, const float* x, const float* scales, int64_t n, DType format) {
  float values[kFp8Block];
  for (int64_t i = 0; i < n; i += kFp8Block) {
    const int64_t now = std::min(kFp8Block, n - i);
    divide_each_kernel(values, x + i, scales + i, now, largest(format));
    to_fp8(codes + i, values, now, format);
  }
}

void quantise_fp8(uint8_t* codes, float* scales, const float* x, const Fp8Tiles& tiles) {
  std::vector<float> magnitudes(static_cast<size_t>(tiles.rows * tiles.across()));
  each_run(tiles,
           [&](int64_t at, int64_t count, int64_t, int64_t run) { magnitudes[run] = magnitude_of(x + at, count); });
  std::fill_n(scales, tiles.count(), 0.0f);
  for (int64_t run = 0; run < static_cast<int64_t>(magnitudes.size()); ++run) {
    float& most = scales[run / tiles.across() / tiles.tile_rows * tiles.across() + run % tiles.across()];
    most = std::max(most, magnitudes[run]);
  }
  const float top = largest(tiles.format);
  for (int64_t tile = 0; tile < tiles.count(); ++tile) scales[tile] = fp8_scale(scales[tile], tiles.format);
  each_run(tiles, [&](int64_t at, int64_t count, int64_t tile, int64_t) {
    float values[kFp8Block];
    for (int64_t i = 0; i < count; i += kFp8Block) {
      const int64_t now = std::min(kFp8Block, count - i);
      divide_kernel(values, x + at + i, now, scales[tile], top);
      to_fp8(codes + at + i, values, now, tiles.format);
    }
  });
}

void dequantise_fp8(float* out, const uint8_t* codes, const float* scales, const Fp8Tiles& tiles) {
  each_run(tiles, [&](int64_t at, int64_t count, int64_t tile, int64_t) {
    from_fp8(out + at, codes + at, count, tiles.format);
    multiply_kernel(out + at, count, scales[tile]);
  });
}

}  // namespace tessera::ops
