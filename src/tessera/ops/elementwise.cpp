// Sums, with or without gate, and the two ways to read a parameter outside a product: whole (param) or by rows
// (embedding).
#include "tessera/base/check.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/node.h"
#include "tessera/ops/rebuild.h"
#include "tessera/ops/tangent.h"

namespace tessera::ops {

namespace {

/// table[ids] in fp32.
Tensor rows_of(const Tensor& table, const Tensor& ids) { return as_floats(table_rows(table, ids)); }

struct Sum : Function<Sum> {
  static Tensor run(const Tensor& x, const Tensor& y) {
    check_internal(x.dim() == 2 && x.is_contiguous() && y.is_contiguous() && x.sizes() == y.sizes(), "ops.sum",
                   "x and y must be contiguous matrices and alike");
    const Tensor out = kernels(x).sum(x, y);
    if (Rebuilds* rebuilds = session().rebuilds)
      rebuilds->register_value(out, {x, y},
                               [](const std::vector<Tensor>& from) { return kernels(from[0]).sum(from[0], from[1]); });
    return out;
  }
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& y) {
    ctx->saved_data["type of y"] = static_cast<int64_t>(y.scalar_type());
    ctx->saved_data["bias"] = bias_behind(y);
    return run(x, y);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto type = static_cast<at::ScalarType>(ctx->saved_data["type of y"].toInt());
    if (!ctx->needs_input_grad(1) || grads[0].scalar_type() == type)
      return {grads[0], ctx->needs_input_grad(1) ? grads[0] : Tensor()};
    ColumnSums columns(ctx);
    const Tensor dy = kernels(grads[0]).sum_backward(grads[0].contiguous(), type, columns.wanted());
    columns.leave(dy);
    return {grads[0], dy};
  }
};

struct GatedResidual : Function<GatedResidual> {
  static Tensor run(const Tensor& x, const Tensor& y, const Tensor& gate, const RowIndex& rows, bool value,
                    Tensor* rounded) {
    check_internal(x.is_contiguous() && y.is_contiguous() && x.sizes() == y.sizes(), "ops.gated_residual",
                   "x and y must be contiguous and alike");
    if (!value) return at::empty_strided(x.sizes(), {0, 0}, x.options());
    const Tensor out = kernels(x).gated_residual(x, y, gate, rows, rounded);
    if (Rebuilds* rebuilds = session().rebuilds)
      rebuilds->register_value(out, {x, y, gate, rows.of_token}, [runs = rows.runs](const std::vector<Tensor>& from) {
        return kernels(from[0]).gated_residual(from[0], from[1], from[2], {from[3], runs}, nullptr);
      });
    if (session().rebuilds && rounded && rounded->defined())
      session().rebuilds->register_value(*rounded, {out},
                                         [](const std::vector<Tensor>& from) { return from[0].to(at::kBFloat16); });
    return out;
  }
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& y, const Tensor& gate,
                        const RowIndex* rows, bool value, Tensor* rounded) {
    ctx->save_for_backward({y, gate, rows->of_token});
    save_runs(ctx, *rows);
    ctx->saved_data["bias"] = bias_behind(y);
    return run(x, y, gate, *rows, value, rounded);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &y = saved[0], &gate = saved[1], up = grads[0].contiguous();
    const RowIndex rows = saved_rows(ctx, saved[2]);
    Tensor dy, dgate;
    if (ctx->needs_input_grad(2)) dgate = at::empty(gate.sizes(), gate.options());
    if (ctx->needs_input_grad(1)) dy = is_sole_owner(y) ? y.detach() : at::empty_like(y);
    ColumnSums columns(ctx);
    kernels(y).gated_residual_backward(up, y, gate, rows, dy, dgate, /*add=*/false, columns.wanted());
    columns.leave(dy);
    return {grads[0], dy, dgate, {}, {}, {}};
  }
};

/// Adds the rows of a gradient of a parameter, with what else a unit's backward leaves.
void add_rows_of(const Tensor& gradient, WeightSite& site) {
  open_gradient(site);
  if (!site.grad.defined()) return;
  const Tensor rows = gradient.contiguous().view({-1, site.grad.numel()});
  kernels(rows).bias_gradient(site.grad.view(-1), rows, !std::exchange(site.fresh, false));
}

struct Param : Function<Param> {
  static Tensor forward(AutogradContext* ctx, const Tensor& anchor, Handle site) {
    ctx->saved_data["w"] = site;
    return value_of(*site_of(site));
  }
  /// A copy in fp32, which the model computes with.
  static Tensor value_of(const WeightSite& site) {
    return is_half(site.value) ? site.value.to(at::kFloat) : site.value.clone();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    add_rows_of(grads[0], *site_of(ctx, "w"));
    return {{}, {}};
  }
};

struct ParamPlus : Function<ParamPlus> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& anchor, Handle site) {
    ctx->saved_data["w"] = site;
    return site_of(site)->value + x;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    add_rows_of(grads[0], *site_of(ctx, "w"));
    return {grads[0], {}, {}};
  }
};

struct Embedding : Function<Embedding> {
  static Tensor run(const Tensor& ids, const WeightSite& table) { return rows_of(table.value, ids); }
  static Tensor forward(AutogradContext* ctx, const Tensor& anchor, const Tensor& ids, Handle table) {
    ctx->saved_data["w"] = table;
    ctx->save_for_backward({ids});
    return run(ids, *site_of(table));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor ids = ctx->get_saved_variables()[0], dy = grads[0].contiguous();
    if (const Tensor grad = accumulating(*site_of(ctx, "w")); grad.defined())
      kernels(dy).embedding_gradient(grad, ids, dy);
    return {{}, {}, {}};
  }
};

}  // namespace

Tensor gated_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const RowIndex& rows, bool value,
                      Tensor* rounded) {
  check_rows(rows, x, gate, "ops.gated_residual");
  if (any_moves({&x, &y, &gate})) {
    const Moving mx = parts(x), my = parts(y), mg = parts(gate);
    const auto times = [&](const Tensor& a, const Tensor& table) {
      return a.defined() && table.defined() ? as_floats(a) * table_rows(table, rows.of_token) : Tensor();
    };
    return moving(GatedResidual::run(mx.value, my.value, mg.value, rows, value, nullptr),
                  sum_of_tangents({mx.tangent, times(my.tangent, mg.value), times(my.value, mg.tangent)}));
  }
  return wants_graph({&x, &y, &gate}) ? GatedResidual::apply(x, y, gate, &rows, value, rounded)
                                      : GatedResidual::run(x, y, gate, rows, value, rounded);
}

Tensor sum(const Tensor& x, const Tensor& y) {
  if (any_moves({&x, &y})) {
    const Moving mx = parts(x), my = parts(y);
    return moving(Sum::run(mx.value, my.value), sum_of_tangents({mx.tangent, my.tangent}));
  }
  return wants_graph({&x, &y}) ? Sum::apply(x, y) : Sum::run(x, y);
}

void drop_rows(const Tensor& x, const Dropout& drop, int64_t first_row) { kernels(x).drop_rows(x, drop, first_row); }

Tensor param(WeightSite& weight, const Tensor& anchor) {
  return wants_graph({&anchor}) ? Param::apply(anchor, handle(&weight)) : Param::value_of(weight);
}

Tensor param_plus(WeightSite& weight, const Tensor& x, const Tensor& anchor) {
  check_internal(x.scalar_type() == at::kFloat && x.numel() == x.size(0) * weight.value.numel(), "ops.param_plus",
                 "each row of x must be fp32 and have the parameter's size");
  return wants_graph({&x, &anchor}) ? ParamPlus::apply(x, anchor, handle(&weight)) : weight.value + x;
}

Tensor embedding(const Tensor& ids, WeightSite& table, const Tensor& anchor) {
  return wants_graph({&anchor}) ? Embedding::apply(anchor, ids, handle(&table)) : Embedding::run(ids, table);
}

}  // namespace tessera::ops
