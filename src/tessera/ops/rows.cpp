#include "tessera/ops/rows.h"

#include "tessera/base/check.h"
#include "tessera/ops/activations.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/node.h"
#include "tessera/ops/tangent.h"

namespace tessera::ops {

namespace {

Tensor taken(const Tensor& x, const Tensor& order) {
  // index_select does not support meta tensors
  if (x.is_meta()) return at::empty({order.size(0), x.size(1)}, x.options());
  return x.index_select(0, order);
}
Tensor put(const Tensor& x, const Tensor& order) {
  Tensor out = at::empty(x.sizes(), x.options());
  return x.is_meta() ? out : out.index_copy_(0, order, x);
}

struct TakeRows : Function<TakeRows> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& order) {
    ctx->save_for_backward({order});
    return taken(x, order);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {put(grads[0].contiguous(), ctx->get_saved_variables()[0]), {}};
  }
};

struct PutRows : Function<PutRows> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& order) {
    ctx->save_for_backward({order});
    return put(x, order);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {taken(grads[0].contiguous(), ctx->get_saved_variables()[0]), {}};
  }
};

struct Rope : Function<Rope> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t heads,
                        bool half_split) {
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["half"] = half_split;
    return kernels(x).rope(x, cos, sin, heads, half_split, 1);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor dy = grads[0].contiguous();
    return {kernels(dy).rope(dy, saved[0], saved[1], ctx->saved_data["heads"].toInt(), ctx->saved_data["half"].toBool(),
                             -1),
            {},
            {},
            {},
            {}};
  }
};

/// What the nodes of convolutions keep beside their operands.
void keep_sites(AutogradContext* ctx, const Tensor& x, Handle weight, Handle bias, bool silu) {
  ctx->saved_data["w"] = weight, ctx->saved_data["b"] = bias, ctx->saved_data["silu"] = silu;
  ctx->saved_data["bias"] = bias_behind(x);
}
/// The gradient of x, if it is wanted; adds those of weight and bias.
Tensor depthwise_backward(AutogradContext* ctx, const Tensor& dy, const Tensor& x, const Tensor& table, bool wanted) {
  WeightSite &weight = *site_of(ctx, "w"), *bias = site_of(ctx, "b");
  const Tensor dw = accumulating(weight), db = bias ? accumulating(*bias) : Tensor();
  const bool silu = ctx->saved_data["silu"].toBool();
  if (dw.defined() || db.defined()) kernels(x).depthwise_weight_gradient(dy, x, table, dw, db, silu);
  if (!wanted) return {};
  ColumnSums columns(ctx);
  const Tensor dx = kernels(x).depthwise_input_gradient(dy, table, weight.value, x.size(0), x.scalar_type(),
                                                        silu ? x : Tensor(), columns.wanted());
  columns.leave(dx);
  return dx;
}
Tensor value_of(const WeightSite* bias) { return bias ? bias->value : Tensor(); }

struct Depthwise : Function<Depthwise> {
  static Tensor run(const Tensor& x, const Tensor& table, const WeightSite& weight, const WeightSite* bias,
                    at::ScalarType type, bool silu) {
    return kernels(x).depthwise(x, table, weight.value, value_of(bias), type, silu);
  }
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& anchor, const Tensor& table, Handle weight,
                        Handle bias, int64_t type, bool silu) {
    ctx->save_for_backward({x, table});
    keep_sites(ctx, x, weight, bias, silu);
    return run(x, table, *site_of(weight), site_of(bias), static_cast<at::ScalarType>(type), silu);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor dy = grads[0].contiguous();
    return {depthwise_backward(ctx, dy, saved[0], saved[1], ctx->needs_input_grad(0)), {}, {}, {}, {}, {}, {}};
  }
};

struct GatedDepthwise : Function<GatedDepthwise> {
  static Tensor run(const Tensor& value, const Tensor& x, const Tensor& table, const WeightSite& weight,
                    const WeightSite* bias, bool silu) {
    const Kernels& own = kernels(x);
    if (own.gated_depthwise) return own.gated_depthwise(value, x, table, weight.value, value_of(bias), silu);
    return own.silu_glu(value, Depthwise::run(x, table, weight, bias, value.scalar_type(), silu));
  }
  static Tensor forward(AutogradContext* ctx, const Tensor& value, const Tensor& x, const Tensor& anchor,
                        const Tensor& table, Handle weight, Handle bias, bool silu) {
    ctx->save_for_backward({value, x, table});
    keep_sites(ctx, x, weight, bias, silu);
    return run(value, x, table, *site_of(weight), site_of(bias), silu);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &value = saved[0], &x = saved[1], &table = saved[2];
    const Tensor up = grads[0].contiguous();
    const WeightSite &weight = *site_of(ctx, "w"), *bias = site_of(ctx, "b");
    const bool silu = ctx->saved_data["silu"].toBool();
    const Kernels& own = kernels(x);
    const auto [d_value, dy] =
        own.gated_depthwise_gradients
            ? own.gated_depthwise_gradients(up, value, x, table, weight.value, value_of(bias), silu)
            : own.silu_glu_gradients(up, value, Depthwise::run(x, table, weight, bias, value.scalar_type(), silu));
    return {d_value, depthwise_backward(ctx, dy, x, table, ctx->needs_input_grad(1)), {}, {}, {}, {}, {}};
  }
};

struct Unfold : Function<Unfold> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& table) {
    ctx->save_for_backward({table});
    ctx->saved_data["rows"] = x.size(0);
    return kernels(x).unfold(x, table);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor dy = grads[0].contiguous();
    return {kernels(dy).unfold_gradient(dy, ctx->get_saved_variables()[0], ctx->saved_data["rows"].toInt()), {}};
  }
};

}  // namespace

Tensor take_rows(const Tensor& x, const Tensor& order) {
  if (moves(x)) return moving_linearly(x, [&](const Tensor& t) { return taken(t, order); });
  return wants_graph({&x}) ? TakeRows::apply(x, order) : taken(x, order);
}
Tensor put_rows(const Tensor& x, const Tensor& order) {
  if (moves(x)) return moving_linearly(x, [&](const Tensor& t) { return put(t, order); });
  return wants_graph({&x}) ? PutRows::apply(x, order) : put(x, order);
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t heads, bool half_split) {
  const bool fits = cos.sizes() == at::IntArrayRef({x.size(0), x.size(1) / heads / 2}) && cos.sizes() == sin.sizes();
  check_internal(fits && cos.is_contiguous() && sin.is_contiguous() && x.is_contiguous(), "ops.rope",
                 "cos and sin must be [rows, channels / heads / 2]");
  if (moves(x))
    return moving_linearly(x, [&](const Tensor& t) { return kernels(t).rope(t, cos, sin, heads, half_split, 1); });
  return wants_graph({&x}) ? Rope::apply(x, cos, sin, heads, half_split)
                           : kernels(x).rope(x, cos, sin, heads, half_split, 1);
}

Tensor unfold(const Tensor& x, const Tensor& table) {
  check_internal(x.is_contiguous() && x.dim() == 2 && table.dim() == 2, "ops.unfold", "expected rows and their taps");
  if (moves(x)) return moving_linearly(x, [&](const Tensor& t) { return kernels(t).unfold(t, table); });
  return wants_graph({&x}) ? Unfold::apply(x, table) : kernels(x).unfold(x, table);
}

Tensor depthwise(const Tensor& x, const Tensor& table, WeightSite& weight, WeightSite* bias, const Tensor& anchor,
                 at::ScalarType type, bool silu) {
  check_internal(x.is_contiguous() && weight.value.numel() == x.size(1) * table.size(0), "ops.depthwise",
                 "the weight must have a value for each channel and tap");
  if (const auto [value, tangent] = parts(x); tangent.defined())
    return moving(Depthwise::run(value, table, weight, bias, type, silu),
                  Depthwise::run(silu ? at::silu_backward(tangent, value) : tangent, table, weight, nullptr, type,
                                 /*silu=*/false));
  if (wants_graph({&x, &anchor}))
    return Depthwise::apply(x, anchor, table, handle(&weight), handle(bias), static_cast<int64_t>(type), silu);
  return Depthwise::run(x, table, weight, bias, type, silu);
}

Tensor gated_depthwise(const Tensor& value, const Tensor& x, const Tensor& table, WeightSite& weight, WeightSite* bias,
                       const Tensor& anchor, bool silu) {
  check_internal(value.is_contiguous() && value.sizes() == at::IntArrayRef({table.size(1), x.size(1)}),
                 "ops.gated_depthwise", "what is gated must have the rows of the convolution's result");
  if (any_moves({&value, &x}))
    return silu_glu(value, depthwise(x, table, weight, bias, anchor, value.scalar_type(), silu));
  check_internal(x.is_contiguous() && weight.value.numel() == x.size(1) * table.size(0), "ops.gated_depthwise",
                 "the weight must have a value for each channel and tap");
  if (wants_graph({&value, &x, &anchor}))
    return GatedDepthwise::apply(value, x, anchor, table, handle(&weight), handle(bias), silu);
  return GatedDepthwise::run(value, x, table, weight, bias, silu);
}

}  // namespace tessera::ops
