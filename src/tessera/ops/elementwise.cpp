// Sums, with or without gate, and the two ways to read a parameter outside a product: whole (param) or by rows
// (embedding).
#include <ATen/Parallel.h>

#include "tessera/base/check.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/node.h"
#include "tessera/ops/ops.h"
#include "tessera/ops/rebuild.h"

namespace tessera::ops {

namespace {

/// table[ids] in fp32; index_select has no meta form in LibTorch, so meta results are allocated directly.
Tensor rows_of(const Tensor& table, const Tensor& ids) {
  const Tensor rows =
      table.is_meta() ? at::empty({ids.numel(), table.size(1)}, table.options()) : table.index_select(0, ids);
  return as_floats(rows);
}

constexpr int64_t kTokenGrain = 64, kColumnGrain = 64;

TESSERA_KERNEL void gated_forward(const float* x, const float* y, const float* gate, int64_t gate_stride,
                                  const int32_t* rows, int64_t begin, int64_t end, int64_t n, float* to) {
  for (int64_t t = begin; t < end; ++t) {
    const float* __restrict a = x + t * n, * __restrict b = y + t * n, * __restrict g = gate + rows[t] * gate_stride;
    float* __restrict out = to + t * n;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i] * g[i];
  }
}

TESSERA_KERNEL void gated_input(const float* up, const float* gate, int64_t gate_stride, const int32_t* rows,
                                int64_t begin, int64_t end, int64_t n, float* dy) {
  for (int64_t t = begin; t < end; ++t) {
    const float* __restrict u = up + t * n, * __restrict g = gate + rows[t] * gate_stride;
    float* __restrict out = dy + t * n;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = u[i] * g[i];
  }
}

/// Columns [begin, end) of the gate's gradient, over tokens in order.
TESSERA_KERNEL void gated_table(const float* up, const float* y, const int32_t* rows, int64_t tokens, int64_t n,
                                int64_t begin, int64_t end, float* dgate) {
  for (int64_t t = 0; t < tokens; ++t) {
    const float* __restrict u = up + t * n, * __restrict v = y + t * n;
    float* __restrict out = dgate + rows[t] * n;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) out[i] += u[i] * v[i];
  }
}

TESSERA_KERNEL void sum_kernel(const float* x, const float* y, int64_t n, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = x[i] + y[i];
}

Tensor summed(const Tensor& x, const Tensor& y) {
  const Tensor out = at::empty_like(x);
  if (x.is_meta()) return out;
  const Values a(x), b(y);
  const Results to(out);
  const int64_t width = x.size(1);
  at::parallel_for(0, x.size(0), kTokenGrain, [&](int64_t begin, int64_t end) {
    each_piece(begin, end, a.half() || b.half(), kHalfRows, [&](int64_t first, int64_t n) {
      const int64_t at = first * width, count = n * width;
      const auto space = [&](bool half, int which) { return half ? half_scratch(which, count) : nullptr; };
      float* sums = to.place(at, space(to.half(), 2));
      sum_kernel(a.read(at, count, space(a.half(), 0)), b.read(at, count, space(b.half(), 1)), count, sums);
      to.store(at, count, sums);
    });
  });
  return out;
}

struct Sum : Function<Sum> {
  static Tensor run(const Tensor& x, const Tensor& y) {
    check_internal(x.dim() == 2 && x.is_contiguous() && y.is_contiguous() && x.sizes() == y.sizes(), "ops.sum",
                   "x and y must be contiguous matrices and alike");
    const Tensor out = summed(x, y);
    if (Rebuilds* rebuilds = Rebuilds::current())
      rebuilds->register_value(out, {x, y}, [](const std::vector<Tensor>& from) { return summed(from[0], from[1]); });
    return out;
  }
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& y) {
    ctx->saved_data["type of y"] = static_cast<int64_t>(y.scalar_type());
    return run(x, y);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto type = static_cast<at::ScalarType>(ctx->saved_data["type of y"].toInt());
    return {grads[0], ctx->needs_input_grad(1) ? grads[0].to(type) : Tensor()};
  }
};

struct GatedResidual : Function<GatedResidual> {
  static Tensor run(const Tensor& x, const Tensor& y, const Tensor& gate, const Tensor& rows, bool value) {
    check_internal(x.is_contiguous() && y.is_contiguous() && x.sizes() == y.sizes(), "ops.gated_residual",
                   "x and y must be contiguous and alike");
    if (!value) return at::empty_strided(x.sizes(), {0, 0}, x.options());
    const Tensor out = gated(x, y, gate, rows);
    if (Rebuilds* rebuilds = Rebuilds::current())
      rebuilds->register_value(out, {x, y, gate, rows}, [](const std::vector<Tensor>& from) {
        return gated(from[0], from[1], from[2], from[3]);
      });
    return out;
  }
  static Tensor gated(const Tensor& x, const Tensor& y, const Tensor& gate, const Tensor& rows) {
    Tensor out = at::empty_like(x);
    if (x.is_meta()) return out;
    const Values branch(y);
    const int64_t width = x.size(1);
    at::parallel_for(0, x.size(0), kTokenGrain, [&](int64_t begin, int64_t end) {
      each_piece(begin, end, branch.half(), kHalfRows, [&](int64_t first, int64_t n) {
        const int64_t at = first * width;
        float* space = branch.half() ? half_scratch(0, n * width) : nullptr;
        gated_forward(data(x) + at, branch.read(at, n * width, space), data(gate), gate.stride(0),
                      rows.const_data_ptr<int32_t>() + first, 0, n, width, out_data(out) + at);
      });
    });
    return out;
  }
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& y, const Tensor& gate, const Tensor& rows,
                        bool value) {
    ctx->save_for_backward({y, gate, rows});
    return run(x, y, gate, rows, value);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &y = saved[0], &gate = saved[1], &rows = saved[2], up = grads[0].contiguous();
    Tensor dy, dgate;
    if (ctx->needs_input_grad(2)) {
      dgate = at::zeros(gate.sizes(), gate.options());
      if (!y.is_meta()) gate_gradient(up, y, rows.const_data_ptr<int32_t>(), out_data(dgate));
    }
    if (ctx->needs_input_grad(1)) {
      dy = is_sole_owner(y) ? y.detach() : at::empty_like(y);
      if (!y.is_meta()) branch_gradient(up, gate, rows.const_data_ptr<int32_t>(), dy);
    }
    return {grads[0], dy, dgate, {}, {}};
  }

 private:
  static void gate_gradient(const Tensor& up, const Tensor& y, const int32_t* rows, float* dgate) {
    const Values branch(y);
    const int64_t width = y.size(1);
    at::parallel_for(0, width, kColumnGrain, [&](int64_t begin, int64_t end) {
      each_piece(0, y.size(0), branch.half(), kHalfRows, [&](int64_t first, int64_t n) {
        float* space = branch.half() ? half_scratch(0, n * width) : nullptr;
        gated_table(data(up) + first * width, branch.read_columns(first, n, width, begin, end, space), rows + first, n,
                    width, begin, end, dgate);
      });
    });
  }
  static void branch_gradient(const Tensor& up, const Tensor& gate, const int32_t* rows, const Tensor& dy) {
    const Results to(dy);
    const int64_t width = up.size(1);
    at::parallel_for(0, up.size(0), kTokenGrain, [&](int64_t begin, int64_t end) {
      each_piece(begin, end, to.half(), kHalfRows, [&](int64_t first, int64_t n) {
        const int64_t at = first * width;
        float* out = to.place(at, to.half() ? half_scratch(0, n * width) : nullptr);
        gated_input(data(up) + at, data(gate), gate.stride(0), rows + first, 0, n, width, out);
        to.store(at, n * width, out);
      });
    });
  }
};

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
    WeightSite& site = *site_of(ctx, "w");
    open_gradient(site);
    if (site.grad.defined()) std::exchange(site.fresh, false) ? site.grad.copy_(grads[0]) : site.grad.add_(grads[0]);
    return {{}, {}};
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
    const int64_t d = dy.size(1);
    if (float* grad = accumulating(*site_of(ctx, "w")))
      for (int64_t t = 0; t < ids.size(0); ++t) add(grad + ids.const_data_ptr<int64_t>()[t] * d, data(dy) + t * d, d);
    return {{}, {}, {}};
  }
};

}  // namespace

Tensor gated_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const Tensor& rows, bool value) {
  check_rows(rows, x, gate, "ops.gated_residual");
  return wants_graph({&x, &y, &gate}) ? GatedResidual::apply(x, y, gate, rows, value)
                                      : GatedResidual::run(x, y, gate, rows, value);
}

Tensor sum(const Tensor& x, const Tensor& y) { return wants_graph({&x, &y}) ? Sum::apply(x, y) : Sum::run(x, y); }

Tensor param(WeightSite& weight, const Tensor& anchor) {
  return wants_graph({&anchor}) ? Param::apply(anchor, handle(&weight)) : Param::value_of(weight);
}

Tensor embedding(const Tensor& ids, WeightSite& table, const Tensor& anchor) {
  return wants_graph({&anchor}) ? Embedding::apply(anchor, ids, handle(&table)) : Embedding::run(ids, table);
}

}  // namespace tessera::ops
