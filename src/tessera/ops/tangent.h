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
#include <vector>

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

/// The tangent of softmax attention whose keys may come in blocks: each adds to these, fp32, with the log-sum-exp of all keys.
struct AttentionTangent {
  at::Tensor sums;    ///< [queries, H * d]: (P dS) v + P dv
  at::Tensor scores;  ///< [H, queries]: the sums of P dS along the keys
  AttentionTangent(const at::Tensor& q, int64_t heads);
  /// Of the rows [begin, begin + count) of the queries, to which a block's keys belong.
  AttentionTangent rows(int64_t begin, int64_t count) const;
  void add(const Moving& q, const Moving& k, const Moving& v, const at::Tensor& lse, const std::vector<int64_t>& q_at,
           const std::vector<int64_t>& k_at) const;
  /// Of the result `out` of all keys, in its dtype.
  at::Tensor of(const at::Tensor& out) const;

 private:
  AttentionTangent() = default;
};

}  // namespace tessera::ops
