#pragma once
// A linear with a frozen weight, with or without an adapter: a low-rank pair (LoRA), or a change of the weight
// (adapter.h).
//
//   Adapter pair{.a = &a, .b = &b, .scale = alpha / rank};
//   y = ops::frozen_linear(x, weight, &bias, &pair, anchor);    // y = x W^T + b + s (drop(x) A^T) B^T
//
// With a magnitude m [out] it is DoRA (Liu et al., 2024): W' = W + s B A with rows scaled to norm m: y = (m / |W'|) (x
// W'^T) + b. |W'| is a constant in the gradients, as in section 4.3 of the paper and in peft.
#include "tessera/ops/adapter.h"

namespace tessera::ops {

/// x [T, in], W [out, in] frozen in any format (frozen.h), b [out] frozen or null, `adapter` or null (copied). `gelu`:
/// applied to gelu_tanh(x) instead of x. Saves nothing without an adapter (with gelu: x); with one x; with a magnitude
/// also y and |W'|. Without an adapter and a gradient of x there is no node. The result has dtype `type`; if it, x or
/// the small tensors are 16-bit, all intermediates (x A^T too) are fp32 and the result is rounded once (ops.h, [Note:
/// 16 bits]). `known`: the result of a pass without a graph, which is not recomputed.
at::Tensor frozen_linear(const at::Tensor& x, WeightSite& weight, WeightSite* bias, const Adapter* adapter,
                         const at::Tensor& anchor, bool gelu = false, at::ScalarType type = at::kFloat,
                         const at::Tensor* known = nullptr);

}  // namespace tessera::ops
