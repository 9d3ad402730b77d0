#pragma once
// Products with a frozen weight in its storage format: fp32, 16 bits, or 8 bits with scales.
//
//   WeightSite w = freeze(source, at::kChar);                // int8
//   frozen_product(y, x, w, false);                          // y  = x W^T
//   frozen_product_back(dx, dy, w, false);                   // dx = dy W
//
// The dtype of `value` is the format: kFloat, kBFloat16 and kHalf are plain numbers, [out, ...]; kChar and kFloat8_e4m3fn
// (ops/eight_bit.h) are a flat run of blocks: 256 codes of consecutive elements, then their scale, an fp32 in
// 4 bytes. `blocks` of the site then has the shape. Products widen 16-bit weights while packing them, and 8-bit weights
// a few rows at a time; the whole matrix never exists in fp32.
#include "tessera/ops/gemm.h"
#include "tessera/ops/ranges.h"
#include "tessera/ops/weight.h"

namespace tessera::ops {

inline constexpr int64_t kFrozenBlock = 256 + 4;  ///< bytes of a block

/// A frozen weight of `source` [out, ...] (fp32) in a storage format. Throws InternalError for other dtypes.
WeightSite freeze(const at::Tensor& source, at::ScalarType form);

int64_t out_dim(const WeightSite& weight);
int64_t in_dim(const WeightSite& weight);

/// Converts `count` values to and from bytes of a format other than fp32; 8-bit formats from the start of a block, and
/// the last block may be short.
void write_stored(void* to, const float* values, int64_t count, at::ScalarType form);
void read_stored(float* values, const void* from, int64_t count, at::ScalarType form);
/// The bytes of such values of a flat shard, for the host; in 8-bit forms `element` must be the first of a block.
HostBytes stored_at(const at::Tensor& shard, DType stored, int64_t element, int64_t count,
                    HostBytes::Contents contents);

/// Widens rows first..first + out.size(0) of W into `out` [rows, in]. 8-bit formats: first * in must be a multiple of
/// 256.
void widen_rows(const at::Tensor& out, const WeightSite& weight, int64_t first);

/// Number of rows of W that are widened at once; times `in` a multiple of 256, so that panels begin with a block.
int64_t panel_rows(const WeightSite& weight);

/// y [T, out] (+)= x_map(x) W^T, x [T, in].
void frozen_product(const at::Tensor& y, const at::Tensor& x, const WeightSite& weight, bool add, Map x_map = nullptr);
/// dx [T, in] (+)= dy W, dy [T, out].
void frozen_product_back(const at::Tensor& dx, const at::Tensor& dy, const WeightSite& weight, bool add);

// A linear with a frozen weight, with or without an adapter: a low-rank pair (LoRA), or a change of the weight (weight.h).
//
//   Adapter pair{.a = &a, .b = &b, .scale = alpha / rank};
//   y = ops::frozen_linear(x, weight, &bias, &pair, anchor);    // y = x W^T + b + s (drop(x) A^T) B^T
//
// With a magnitude m [out] it is DoRA (Liu et al., 2024): W' = W + s B A with rows scaled to norm m: y = (m / |W'|) (x
// W'^T) + b. |W'| is a constant in the gradients, as in section 4.3 of the paper and in peft.

/// x [T, in], W [out, in] frozen in any format, b [out] frozen or null, `adapter` or null (copied). `gelu`:
/// applied to gelu_tanh(x) instead of x. Saves nothing without an adapter (with gelu: x); with one x; with a magnitude
/// also y and |W'|. Without an adapter and a gradient of x there is no node. The result has dtype `type`; if it, x or
/// the small tensors are 16-bit, all intermediates (x A^T too) are fp32 and the result is rounded once (ops.h, [Note:
/// 16 bits]). `known`: the result of a pass without a graph, which is not recomputed.
at::Tensor frozen_linear(const at::Tensor& x, WeightSite& weight, WeightSite* bias, const Adapter* adapter,
                         const at::Tensor& anchor, bool gelu = false, at::ScalarType type = at::kFloat,
                         const at::Tensor* known = nullptr);

}  // namespace tessera::ops
