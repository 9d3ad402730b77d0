#pragma once
// A frozen linear and its low-rank pair where something is of 16 bits: 256 rows at a time are widened, go through all
// products in fp32 and are rounded once. Internal to the room: users call frozen_linear (lora.h).
//
//   Tensor y = forward_by_rows({x, weight, bias, pair, gelu, norms}, at::kBFloat16);
//   backward_by_rows({x, weight, bias, pair, gelu, norms}, dy, y, dx);
#include "tessera/ops/adapter.h"

namespace tessera::ops {

/// Borrowed, but for the tensors' handles.
struct FrozenLinearParts {
  at::Tensor x;  ///< [T, in]; for a backward without pair and gelu undefined
  const WeightSite& weight;
  const WeightSite* bias;
  const Adapter* pair;
  bool gelu;
  at::Tensor norms;  ///< |W'| [out] fp32, where the pair has a magnitude
};

/// y [T, out] of `type`.
at::Tensor forward_by_rows(const FrozenLinearParts& parts, at::ScalarType type);
/// Adds the gradients of the pair to its sites, and fills dx [T, in] (undefined: nobody wants it), which may be x
/// itself. `y`: the result, where the pair has a magnitude.
void backward_by_rows(const FrozenLinearParts& parts, const at::Tensor& dy, const at::Tensor& y, const at::Tensor& dx);

}  // namespace tessera::ops
