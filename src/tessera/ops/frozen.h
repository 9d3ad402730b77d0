#pragma once
// Products with a frozen weight in the form in which it rests: fp32, bf16, or 8 bits with scales.
//
//   WeightSite w{.value = codes, .scales = scales};          // [out, in] int8, [ceil(out * in / 256)] fp32
//   frozen_product(y, x, w, false);                          // y  = x W^T
//   frozen_product_back(dx, dy, w, false);                   // dx = dy W
//
// The dtype of `value` says the form: fp32 and bf16 are the numbers themselves, int8 (ops/int8.h) and float8_e4m3fn
// (ops/fp8.h) are codes in blocks of 256 consecutive elements. What is not fp32 is widened some rows of W at a time:
// the whole matrix in fp32 never exists.
#include "tessera/ops/gemm.h"
#include "tessera/ops/weight.h"

namespace tessera::ops {

/// A frozen weight of `source` [out, ...] (fp32) in the given form: kFloat, kBFloat16, kChar or kFloat8_e4m3fn.
/// Throws InternalError for any other.
WeightSite freeze(const at::Tensor& source, at::ScalarType form);

/// Rows first..first + out.size(0) of W as fp32 into `out` [rows, in]. 8 bits: first * in is a multiple of 256.
void widen_rows(const at::Tensor& out, const WeightSite& weight, int64_t first);

/// Rows of W that are widened at once; times `in` a multiple of 256, so that panels begin with a block.
int64_t panel_rows(const WeightSite& weight);

/// y [T, out] (+)= x_map(x) W^T, x [T, in].
void frozen_product(const at::Tensor& y, const at::Tensor& x, const WeightSite& weight, bool add, Map x_map = nullptr);
/// dx [T, in] (+)= dy W, dy [T, out].
void frozen_product_back(const at::Tensor& dx, const at::Tensor& dy, const WeightSite& weight, bool add);

}  // namespace tessera::ops
