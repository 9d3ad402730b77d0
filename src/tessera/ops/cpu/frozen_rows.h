#pragma once
// A frozen linear and its adapter if any tensor is 16-bit: 256 rows at a time are widened, pass through all products in
// fp32 and are rounded once. Use frozen_linear (lora.h).
//
//   Tensor y = forward_by_rows({x, weight, bias, pair, gelu, norms}, at::kBFloat16);
//   backward_by_rows({x, weight, bias, pair, gelu, norms}, dy, y, dx);
#include "tessera/ops/kernels.h"

namespace tessera::ops::cpu {

/// y [T, out] of dtype `type`.
at::Tensor forward_by_rows(const FrozenLinearParts& parts, at::ScalarType type);
/// Adds the adapter's gradients to its sites and writes dx [T, in], which may be x itself; undefined if no gradient is
/// needed. `y`: the result, with a magnitude.
void backward_by_rows(const FrozenLinearParts& parts, const at::Tensor& dy, const at::Tensor& y, const at::Tensor& dx);

}  // namespace tessera::ops::cpu
