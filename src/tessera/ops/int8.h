#pragma once
// Activations and frozen weights in int8: blocks of 256 consecutive values share the scale absmax / 127.
//
//   quantise_int8(q, scales, x, n);                // scales[ceil(n / 256)], the last block may be short
//   dequantise_int8(y, q, scales, n);              // |y - x| <= scale / 2
#include <cstdint>

namespace tessera::ops {

/// q = x / scale rounded half to even, within 127 also where the scale is subnormal; a block of zeros has scale 0 and q 0,
/// NaN changes no scale and has q 0. Blocks are divided among threads.
void quantise_int8(int8_t* q, float* scales, const float* x, int64_t n);
void dequantise_int8(float* out, const int8_t* q, const float* scales, int64_t n);

}  // namespace tessera::ops
