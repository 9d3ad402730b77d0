#pragma once
// A linear whose weight is frozen, with a low-rank pair beside it (LoRA) or without.
//
//   Adapter pair{.a = &a, .b = &b, .scale = alpha / rank};
//   y = ops::frozen_linear(x, weight, &bias, &pair, anchor);    // y = x W^T + b + s (drop(x) A^T) B^T
//
// With a magnitude m [out] it is DoRA (Liu et al., 2024): W' = W + s B A, its rows brought to the length m:
// y = (m / |W'|) (x W'^T) + b. |W'| counts as a constant in the gradients, as the paper's section 4.3 and peft have it.
#include "tessera/ops/adapter.h"

namespace tessera::ops {

/// x [T, in], W [out, in] frozen in any form (frozen.h), b [out] frozen or null, `adapter` or null (copied). `gelu`: of
/// gelu_tanh(x) instead of x. Without adapter nothing is saved (with gelu: x), with one x, with a magnitude y and |W'|
/// too. Without adapter and without a gradient of x there is no node. The result is of `type`; where it, x or the small
/// tensors are of 16 bits, all that is between them (x A^T too) is fp32, and the result is rounded once (ops.h, [Note:
/// 16 bits]). `known`: the result, from a pass without a graph: nothing is computed again.
at::Tensor frozen_linear(const at::Tensor& x, WeightSite& weight, WeightSite* bias, const Adapter* adapter,
                         const at::Tensor& anchor, bool gelu = false, at::ScalarType type = at::kFloat,
                         const at::Tensor* known = nullptr);

}  // namespace tessera::ops
