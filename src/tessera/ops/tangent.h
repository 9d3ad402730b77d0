#pragma once
// Forward mode: a tensor carries, beside its value, its derivative along a direction (its tangent), and every operator
// computes both. It is what the tangent of a consistency loss is made of: no network is called at a displaced input.
//
//   ForwardMode mode;                                            // without a graph
//   Tensor x = moving(value, direction);
//   Moving y = parts(unit.forward(ctx, {{x}, {}}).stream[0]);    // y.value, and y.tangent = J direction
//
// [Note: forward mode] The tangent is LibTorch's own (a dual tensor), so its operators between ours, views and sums of a
// unit, need no code here. Ours, whose kernels read values alone, take a moving operand apart: the rule stands in the
// operator's function, beside its backward. An operator without a rule refuses such an operand (kernels.h): no tangent is
// ever lost without a word. Weights never move.
#include <initializer_list>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// While one exists, tensors may move. Throws InternalError where a graph is being made: a pass is one or the other.
class ForwardMode {
 public:
  ForwardMode();
  ~ForwardMode();  ///< tensors that moved keep their values alone
  ForwardMode(const ForwardMode&) = delete;
  ForwardMode& operator=(const ForwardMode&) = delete;
};

struct Moving {
  at::Tensor value;
  at::Tensor tangent = {};  ///< contiguous, of the value's shape; undefined: it stands still
  bool moves() const { return tangent.defined(); }
};

bool moves(const at::Tensor& x);
bool any_moves(std::initializer_list<const at::Tensor*> operands);
Moving parts(const at::Tensor& x);
/// `value` with that tangent, of its shape; or itself where the tangent is undefined.
at::Tensor moving(const at::Tensor& value, const at::Tensor& tangent);

/// Of what is linear in x: the same of its value and of its tangent.
template <class F>
at::Tensor moving_linearly(const at::Tensor& x, const F& f) {
  const auto [value, tangent] = parts(x);
  return moving(f(value), f(tangent));
}

/// The sum of tangents, undefined where none is there.
at::Tensor sum_of_tangents(std::initializer_list<at::Tensor> tangents);

}  // namespace tessera::ops
