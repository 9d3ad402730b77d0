// LayerNorm with affine weights, and LayerNorm modulated by rows.
#include "tessera/base/check.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/node.h"
#include "tessera/ops/rebuild.h"
#include "tessera/ops/tangent.h"

namespace tessera::ops {

namespace {

void check_matrix(const Tensor& x) {
  check_internal(x.dim() == 2 && x.is_contiguous(), "ops.layer_norm", "x must be a contiguous [tokens, channels]");
}

/// y, and x again if it `passes`: what uses that gives the node its gradient, which the one that it makes then includes.
variable_list results(AutogradContext* ctx, const Tensor& x, const Tensor& y, bool passes) {
  if (!passes) return {y};
  ctx->set_materialize_grads(false);
  return {y, x.detach()};
}
struct Gradients {
  Tensor y, passed;  ///< undefined: nobody used it
};
Gradients gradients(const variable_list& grads) {
  const auto whole = [](const Tensor& t) { return t.defined() ? t.contiguous() : t; };
  return {whole(grads[0]), grads.size() > 1 ? whole(grads[1]) : Tensor()};
}
Tensor first_of(const variable_list& made, Tensor* passed) {
  if (passed) *passed = made[1];
  return made[0];
}

/// The normalised values of x [T, D], and how they change along `tangent` (undefined: they do not).
Moving normalised(const Tensor& value, const Tensor& tangent, const Tensor& stats) {
  const auto of = stats.unbind(1);  // (mean, rstd)
  const Tensor mean = of[0].unsqueeze(1), rstd = of[1].unsqueeze(1), xhat = (as_floats(value) - mean) * rstd;
  if (!tangent.defined()) return {xhat};
  const Tensor dx = as_floats(tangent);
  return {xhat, rstd * (dx - dx.mean(1, true) - xhat * (dx * xhat).mean(1, true))};
}

struct LayerNorm : Function<LayerNorm> {
  static Tensor run(const Tensor& x, const WeightSite& w, const WeightSite& b, double eps, at::ScalarType type,
                    Tensor& stats) {
    const auto made = [&w, &b, eps, type](const Tensor& x, Tensor& stats) {
      return kernels(x).layer_norm(x, {w.value, b.value}, eps, type, stats);
    };
    check_matrix(x);
    const Tensor y = made(x, stats);
    if (Rebuilds* rebuilds = session().rebuilds)
      rebuilds->register_value(y, {x, stats}, [made](const std::vector<Tensor>& from) {
        Tensor known = from[1];
        return made(from[0], known);
      });
    return y;
  }
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& anchor, Handle w, Handle b,
                               double eps, int64_t type, bool passes) {
    Tensor stats;
    Tensor y = run(x, *site_of(w), *site_of(b), eps, static_cast<at::ScalarType>(type), stats);
    ctx->saved_data["w"] = w;
    ctx->saved_data["b"] = b;
    ctx->save_for_backward({x, stats});
    return results(ctx, x, y, passes);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &stats = saved[1];
    const auto [dy, beside] = gradients(grads);
    if (!dy.defined()) return {beside, {}, {}, {}, {}, {}, {}};
    WeightSite &w = *site_of(ctx, "w"), &b = *site_of(ctx, "b");
    const Opened dw = opened(w), db = opened(b);
    const Tensor dx = kernels(x).layer_norm_backward(
        dy, x, {.scale = w.value}, stats, {dw.grad, db.grad, dw.add, db.add}, ctx->needs_input_grad(0), beside);
    return {dx, {}, {}, {}, {}, {}, {}};
  }
};

struct ModulatedNorm : Function<ModulatedNorm> {
  static Tensor run(const Tensor& x, const Tensor& shift, const Tensor& scale, const RowIndex& rows, double eps,
                    at::ScalarType type, Tensor& stats) {
    check_matrix(x);
    const Tensor y = kernels(x).layer_norm(x, {scale, shift, &rows, 1}, eps, type, stats);
    if (Rebuilds* rebuilds = session().rebuilds)
      rebuilds->register_value(
          y, {x, shift, scale, rows.of_token, stats}, [eps, type, runs = rows.runs](const std::vector<Tensor>& from) {
            Tensor known = from[4];
            const RowIndex rows{from[3], runs};
            return kernels(from[0]).layer_norm(from[0], {from[2], from[1], &rows, 1}, eps, type, known);
          });
    return y;
  }
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& shift, const Tensor& scale,
                               const RowIndex* rows, double eps, int64_t type, bool passes) {
    Tensor stats;
    Tensor y = run(x, shift, scale, *rows, eps, static_cast<at::ScalarType>(type), stats);
    ctx->save_for_backward({x, scale, rows->of_token, stats});
    save_runs(ctx, *rows);
    return results(ctx, x, y, passes);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &scale = saved[1], &stats = saved[3];
    const auto [dy, beside] = gradients(grads);
    if (!dy.defined()) return {beside, {}, {}, {}, {}, {}, {}};
    const RowIndex rows = saved_rows(ctx, saved[2]);
    Tensor dshift, dscale;
    if (ctx->needs_input_grad(1)) dshift = at::empty(scale.sizes(), scale.options());
    if (ctx->needs_input_grad(2)) dscale = at::empty(scale.sizes(), scale.options());
    const Tensor dx = kernels(x).layer_norm_backward(dy, x, {.scale = scale, .rows = &rows, .one = 1}, stats,
                                                     {dscale, dshift, /*add_scale=*/false, /*add_shift=*/false},
                                                     ctx->needs_input_grad(0), beside);
    return {dx, dshift, dscale, {}, {}, {}, {}};
  }
};

}  // namespace

Tensor layer_norm(const Tensor& x, WeightSite& weight, WeightSite& bias, double eps, const Tensor& anchor,
                  at::ScalarType type, Tensor* passed) {
  if (const auto [value, tangent] = parts(x); tangent.defined()) {
    Tensor stats;
    const Tensor y = LayerNorm::run(value, weight, bias, eps, type, stats);
    return moving(y, normalised(value, tangent, stats).tangent * as_floats(weight.value));
  }
  if (wants_graph({&x, &anchor}))
    return first_of(
        LayerNorm::apply(x, anchor, handle(&weight), handle(&bias), eps, static_cast<int64_t>(type), passed != nullptr),
        passed);
  Tensor stats;
  return LayerNorm::run(x, weight, bias, eps, type, stats);
}

Tensor modulated_norm(const Tensor& x, const Tensor& shift, const Tensor& scale, const RowIndex& rows, double eps,
                      at::ScalarType type, Tensor* passed) {
  check_rows(rows, x, scale, "ops.modulated_norm");
  check_rows(rows, x, shift, "ops.modulated_norm");
  if (any_moves({&x, &shift, &scale})) {
    const Moving mx = parts(x), by = parts(scale), to = parts(shift);
    const auto of_tokens = [&](const Tensor& table) { return table_rows(table, rows.of_token); };
    Tensor stats;
    const Tensor y = ModulatedNorm::run(mx.value, to.value, by.value, rows, eps, type, stats);
    const auto [xhat, turned] = normalised(mx.value, mx.tangent, stats);
    return moving(y, sum_of_tangents({turned.defined() ? turned * (1 + of_tokens(by.value)) : Tensor(),
                                      by.moves() ? xhat * of_tokens(by.tangent) : Tensor(),
                                      to.moves() ? of_tokens(to.tangent) : Tensor()}));
  }
  if (wants_graph({&x, &shift, &scale}))
    return first_of(ModulatedNorm::apply(x, shift, scale, &rows, eps, static_cast<int64_t>(type), passed != nullptr),
                    passed);
  Tensor stats;
  return ModulatedNorm::run(x, shift, scale, rows, eps, type, stats);
}

// RMSNorm over the full width, optionally followed by the rotary embedding of neighbouring pairs.

namespace {

/// The sums of this rank's columns made those of all ranks; undefined without sharding.
template <typename Sums>
Tensor sum_of_all(const SharedWidth* shared, const Sums& own) {
  if (!shared) return {};
  const Tensor total = own();
  shared->sum_of_all(total);
  return total;
}

int64_t width_of(const Tensor& x, const SharedWidth* shared) { return shared ? shared->width : x.size(1); }

/// Computes y and, in `stats`, the rstd of each token; if these are known, only y, without communication.
Tensor normed(const Tensor& x, const WeightSite& w, const RotaryTables& rotary, double eps, const SharedWidth* shared,
              Tensor& stats) {
  check_internal(x.dim() == 2 && x.is_contiguous(), "ops.rms_norm", "x must be a contiguous [tokens, channels]");
  Tensor squares;
  if (!stats.defined()) squares = sum_of_all(shared, [&] { return kernels(x).row_squares(x); });
  return kernels(x).rms_norm(x, w.value, rotary, eps, width_of(x, shared), squares, stats);
}

Tensor run_forward(const Tensor& x, const WeightSite& w, const RotaryTables& rotary, double eps,
                   const SharedWidth* shared, Tensor& stats) {
  const Tensor y = normed(x, w, rotary, eps, shared, stats);
  if (Rebuilds* rebuilds = session().rebuilds)
    rebuilds->register_value(y, {x, rotary.cos, rotary.sin, stats}, [&w, eps](const std::vector<Tensor>& from) {
      Tensor known = from[3];
      return normed(from[0], w, {from[1], from[2]}, eps, nullptr, known);
    });
  return y;
}

struct RmsNorm : Function<RmsNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& anchor, Handle w,
                        const std::optional<Tensor>& cos, const std::optional<Tensor>& sin, double eps,
                        const SharedWidth* shared) {
    Tensor stats;
    const RotaryTables rotary{cos.value_or(Tensor()), sin.value_or(Tensor())};
    Tensor y = run_forward(x, *site_of(w), rotary, eps, shared, stats);
    ctx->saved_data["shared"] = reinterpret_cast<int64_t>(shared);
    ctx->saved_data["bias"] = bias_behind(x);
    ctx->saved_data["w"] = w;
    ctx->save_for_backward({x, stats, rotary.cos, rotary.sin});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &stats = saved[1], dy = grads[0].contiguous();
    const RotaryTables rotary{saved[2], saved[3]};
    WeightSite& w = *site_of(ctx, "w");
    const Opened dw = opened(w);
    const auto* shared = reinterpret_cast<const SharedWidth*>(ctx->saved_data["shared"].toInt());
    const Kernels& k = kernels(x);
    Tensor dx, dots;
    if (ctx->needs_input_grad(0)) dx = at::empty_like(x);
    if (dx.defined()) dots = sum_of_all(shared, [&] { return k.rms_norm_dots(dy, x, w.value, rotary, dx); });
    ColumnSums columns(ctx);
    k.rms_norm_backward(dy, x, w.value, rotary, stats, width_of(x, shared), dots, dx, dw.grad, dw.add,
                        columns.wanted());
    columns.leave(dx);
    return {dx, {}, {}, {}, {}, {}, {}};
  }
};

/// In forward mode.
Tensor moving_rms_norm(const Tensor& x, const WeightSite& w, const RotaryTables& rotary, int64_t heads, double eps,
                       const SharedWidth* shared) {
  const auto [value, tangent] = parts(x);
  Tensor stats;
  const Tensor y = run_forward(value, w, rotary, eps, shared, stats);
  const Tensor xf = as_floats(value), dx = as_floats(tangent), rstd = stats.view({-1, 1});
  Tensor dots = (xf * dx).sum(1);
  if (shared) shared->sum_of_all(dots);
  dots = dots.unsqueeze(1) / static_cast<double>(width_of(x, shared));
  const Tensor dy = ((dx - xf * rstd.square() * dots) * rstd * as_floats(w.value)).to(y.scalar_type());
  return moving(y, rotary.cos.defined() ? kernels(dy).rope(dy, rotary.cos, rotary.sin, heads, false, 1) : dy);
}

}  // namespace

Tensor rms_norm(const Tensor& x, WeightSite& weight, double eps, const Tensor& anchor, const SharedWidth* shared) {
  if (moves(x)) return moving_rms_norm(x, weight, {}, 0, eps, shared);
  if (wants_graph({&x, &anchor}))
    return RmsNorm::apply(x, anchor, handle(&weight), std::optional<Tensor>(), std::optional<Tensor>(), eps, shared);
  Tensor stats;
  return run_forward(x, weight, {}, eps, shared, stats);
}

Tensor rms_norm_rope(const Tensor& x, WeightSite& weight, const Tensor& cos, const Tensor& sin, int64_t heads,
                     double eps, const Tensor& anchor, const SharedWidth* shared) {
  const bool fits = cos.sizes() == at::IntArrayRef({x.size(0), x.size(1) / heads / 2}) && cos.sizes() == sin.sizes();
  check_internal(fits && cos.is_contiguous() && sin.is_contiguous(), "ops.rms_norm_rope",
                 "cos and sin must be [tokens, channels / heads / 2]");
  if (moves(x)) return moving_rms_norm(x, weight, {cos, sin}, heads, eps, shared);
  if (wants_graph({&x, &anchor}))
    return RmsNorm::apply(x, anchor, handle(&weight), std::optional<Tensor>(cos), std::optional<Tensor>(sin), eps,
                          shared);
  Tensor stats;
  return run_forward(x, weight, {cos, sin}, eps, shared, stats);
}

}  // namespace tessera::ops
