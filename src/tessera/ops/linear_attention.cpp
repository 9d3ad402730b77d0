// Linear attention in two steps (rows.h).
#include "tessera/base/check.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/node.h"
#include "tessera/ops/rows.h"

namespace tessera::ops {

namespace {

struct States : Function<States> {
  static Tensor run(const Tensor& rotated, const Tensor& k, const Tensor& v, int64_t heads, const Offsets& at) {
    return kernels(k).linear_attention_states(rotated, k, v, heads, at);
  }

  static Tensor forward(AutogradContext* ctx, const Tensor& rotated, const Tensor& k, const Tensor& v, int64_t heads,
                        const Offsets& at) {
    ctx->save_for_backward({rotated, k, v});
    ctx->saved_data["heads"] = heads, ctx->saved_data["at"] = at;
    ctx->saved_data["same"] = rotated.is_same(k);
    return run(rotated, k, v, heads, at);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor up = grads[0].contiguous();
    const bool same = ctx->saved_data["same"].toBool();
    const auto d = kernels(up).linear_attention_states_backward(
        up, saved[0], saved[2], same, ctx->saved_data["heads"].toInt(), ctx->saved_data["at"].toIntVector());
    const at::ScalarType type = saved[1].scalar_type();
    return {d.rotated.to(type), same ? Tensor() : d.k.to(type), d.v.to(type), {}, {}};
  }
};

/// `result` [T, D], rounded to `type` if it is not yet. A quotient by a small sum may be beyond what fp16 has: it becomes fp16's
/// largest value, as in the released program, since an infinity would make every later sum NaN.
Tensor rounded_result(Tensor result, at::ScalarType type) {
  constexpr double kLargestHalf = 65504;
  if (result.scalar_type() == type) return result;
  if (type == at::kHalf) result.clamp_(-kLargestHalf, kLargestHalf);
  return result.to(type);
}

struct FromStates : Function<FromStates> {
  static Tensor run(const Tensor& rotated, const Tensor& q, const Tensor& states, int64_t heads, const Offsets& at,
                    double eps, Tensor& down) {
    return rounded_result(kernels(q).linear_attention_result(rotated, q, states, heads, at, eps, down),
                          q.scalar_type());
  }

  static Tensor forward(AutogradContext* ctx, const Tensor& rotated, const Tensor& q, const Tensor& states,
                        int64_t heads, const Offsets& at, double eps) {
    Tensor down;
    const Tensor out = run(rotated, q, states, heads, at, eps, down);
    ctx->save_for_backward({rotated, q, states, out, down});
    ctx->saved_data["heads"] = heads, ctx->saved_data["at"] = at;
    ctx->saved_data["same"] = rotated.is_same(q);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor dy = grads[0].contiguous();
    const bool same = ctx->saved_data["same"].toBool();
    const auto d = kernels(dy).linear_attention_result_backward(dy, {saved[0], saved[1], saved[2], saved[3], saved[4]},
                                                                same, ctx->saved_data["heads"].toInt(),
                                                                ctx->saved_data["at"].toIntVector());
    const at::ScalarType type = saved[1].scalar_type();
    return {d.rotated.to(type), same ? Tensor() : d.q.to(type), d.states, {}, {}, {}};
  }
};

void check_heads(const Tensor& a, const Tensor& b, int64_t heads, const Offsets& at) {
  const bool fits = a.sizes() == b.sizes() && a.is_contiguous() && b.is_contiguous() && a.size(1) % heads == 0;
  check_internal(fits && at.back() == a.size(0), "ops.linear_attention",
                 "the operands must be contiguous [rows, heads * d] of the samples' rows");
}

}  // namespace

Tensor linear_attention_states(const Tensor& rotated_k, const Tensor& k, const Tensor& v, int64_t heads,
                               const Offsets& at) {
  check_heads(rotated_k, k, heads, at), check_heads(k, v, heads, at);
  if (wants_graph({&rotated_k, &k, &v})) return States::apply(rotated_k, k, v, heads, at);
  return States::run(rotated_k, k, v, heads, at);
}

Tensor linear_attention_result(const Tensor& rotated_q, const Tensor& q, const Tensor& states, int64_t heads,
                               const Offsets& at, double eps) {
  check_heads(rotated_q, q, heads, at);
  if (wants_graph({&rotated_q, &q, &states})) return FromStates::apply(rotated_q, q, states, heads, at, eps);
  Tensor down;
  return FromStates::run(rotated_q, q, states, heads, at, eps, down);
}

}  // namespace tessera::ops
