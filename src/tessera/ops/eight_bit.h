#pragma once
// Numbers of 8 bits with scales. Activations and frozen weights in int8: blocks of 256 consecutive values share the scale absmax / 127.
//
//   quantise_int8(q, scales, x, n);                // scales[ceil(n / 256)], the last block may be short
//   dequantise_int8(y, q, scales, n);              // |y - x| <= scale / 2
#include <cstdint>

#include "tessera/base/check.h"
#include "tessera/base/dtype.h"

namespace tessera::ops {

/// q = x / scale rounded half to even, within 127 also where the scale is subnormal; a block of zeros has scale 0 and q 0,
/// NaN changes no scale and has q 0. Blocks are divided among threads.
void quantise_int8(int8_t* q, float* scales, const float* x, int64_t n);
void dequantise_int8(float* out, const int8_t* q, const float* scales, int64_t n);

// 8-bit floats, and matrices of them with a scale for each tile: a whole tensor, a row, a square block or a group
// within a row.
//
//   Fp8Tiles rows{.rows = 64, .cols = 96, .tile_rows = 1, .tile_cols = 96};
//   quantise_fp8(codes, scales, x, rows);          // scales[rows.count()], row-major over tiles
//   dequantise_fp8(y, codes, scales, rows);

/// The largest finite value. f8_e4m3 is the "fn" format: no infinity, maximum 448, only 0x7f and 0xff are NaN. f8_e5m2
/// is IEEE-like, maximum 57344.
float largest(DType format);

/// Rounds to nearest even as LibTorch's cast, which does not saturate: values that round beyond 448 (over 464) become
/// NaN in e4m3, and values beyond the maximum infinity in e5m2. Keeps subnormals. A NaN becomes 0x7f or 0xff.
void to_fp8(uint8_t* codes, const float* x, int64_t n, DType format);
void from_fp8(float* out, const uint8_t* codes, int64_t n, DType format);

/// The tiles of a row-major [rows, cols] matrix; the last of a row or column may be smaller.
struct Fp8Tiles {
  int64_t rows = 0, cols = 0, tile_rows = 1, tile_cols = 1;
  DType format = DType::f8_e4m3;
  int64_t down() const { return div_up(rows, tile_rows); }
  int64_t across() const { return div_up(cols, tile_cols); }
  int64_t count() const { return down() * across(); }
};

/// scale = largest magnitude of the tile / largest(format), at least 1e-12; code of x / scale, clamped to the format. NaN
/// changes no scale and becomes 0x7f, whatever its sign.
void quantise_fp8(uint8_t* codes, float* scales, const float* x, const Fp8Tiles& tiles);
/// The codes of n values, each by a scale of its own.
void quantise_fp8_by(uint8_t* codes, const float* x, const float* scales, int64_t n, DType format);
/// The scale of values of which this is the largest magnitude.
float fp8_scale(float largest_magnitude, DType format);
/// code * scale
void dequantise_fp8(float* out, const uint8_t* codes, const float* scales, const Fp8Tiles& tiles);

}  // namespace tessera::ops
