// y = z W^T + b + s (drop(z) A^T) B^T, z = x or gelu(x). h = s drop(z) A^T [T, r] and its gradient are small and
// recomputed when needed; drop(z) exists for some rows at a time.
#include "tessera/ops/lora.h"

#include <ATen/Parallel.h>

#include "tessera/base/check.h"
#include "tessera/ops/dora.h"
#include "tessera/ops/frozen.h"
#include "tessera/ops/frozen_rows.h"
#include "tessera/ops/gelu.h"
#include "tessera/ops/half.h"
#include "tessera/ops/node.h"
#include "tessera/ops/scale.h"

namespace tessera::ops {

using at::Tensor;

namespace {

constexpr int64_t kDropRows = 256;  // rows of drop(z) that exist at once

Map map_of(bool gelu) { return gelu ? gelu_in_place : nullptr; }

void check_adapter(const Tensor& x, const WeightSite& weight, const Adapter& pair) {
  check_internal(pair.a && pair.b && pair.a->value.defined() && pair.b->value.defined(), "ops.lora",
                 "the adapter is used while it is not gathered");
  check_internal(pair.a->value.dim() == 2 && pair.a->value.size(1) == x.size(1) && pair.b->value.dim() == 2 &&
                     pair.b->value.size(0) == out_dim(weight) && pair.a->value.size(0) == pair.b->value.size(1),
                 "ops.lora", "A must be [r, in] and B [out, r]");
  check_internal(!pair.magnitude || !pair.dropout.active(), "ops.lora", "a magnitude excludes dropout");
}

/// Calls body(drop(z) rows, first row) over all of x.
template <class Body>
void each_dropped(const Tensor& x, const Adapter& pair, bool gelu, const Body& body) {
  const Tensor panel = at::empty({std::min(kDropRows, x.size(0)), x.size(1)}, x.options());
  if (x.is_meta()) return;
  for (int64_t first = 0; first < x.size(0); first += kDropRows) {
    const int64_t n = std::min(kDropRows, x.size(0) - first);
    const Tensor part = panel.narrow(0, 0, n);
    std::copy_n(data(x) + first * x.size(1), part.numel(), out_data(part));
    if (gelu) gelu_in_place(out_data(part), part.numel());
    drop_rows(part, pair.dropout, first);
    body(part, first);
  }
}

/// h = s drop(z) A^T [T, r]
Tensor narrow_part(const Tensor& x, const Adapter& pair, bool gelu) {
  const Tensor h = at::empty({x.size(0), pair.a->value.size(0)}, x.options());
  if (!pair.dropout.active())
    gemm(h, x, pair.a->value.t(), false, map_of(gelu));
  else
    each_dropped(x, pair, gelu,
                 [&](const Tensor& z, int64_t first) { gemm(h.narrow(0, first, z.size(0)), z, pair.a->value.t()); });
  scale_in_place(h, pair.scale);
  return h;
}

/// No tensor is 16-bit except, perhaps, the weight.
bool all_fp32(const Tensor& x, const WeightSite* bias, const Adapter* pair, at::ScalarType type) {
  return !is_half(x) && !is_half(type) && !(bias && is_half(bias->value)) && !(pair && is_half(pair->a->value));
}

Tensor lora_forward(const Tensor& x, const WeightSite& weight, const WeightSite* bias, const Adapter* pair, bool gelu,
                    const Tensor& norms, at::ScalarType type) {
  check_internal(x.dim() == 2 && x.is_contiguous() && (x.scalar_type() == at::kFloat || is_half(x)), "ops.lora",
                 "x must be a contiguous matrix of fp32, bf16 or fp16");
  check_internal(weight.value.defined(), "ops.lora", "the weight is used while it is not gathered");
  if (pair) check_adapter(x, weight, *pair);
  if (!all_fp32(x, bias, pair, type)) return forward_by_rows({x, weight, bias, pair, gelu, norms}, type);
  const bool dora = pair && pair->magnitude, bias_first = bias && !dora;
  const Tensor y = at::empty({x.size(0), out_dim(weight)}, x.options());
  if (bias_first && !x.is_meta())
    for (int64_t r = 0; r < y.size(0); ++r) std::copy_n(data(bias->value), y.size(1), out_data(y) + r * y.size(1));
  frozen_product(y, x, weight, bias_first, map_of(gelu));
  if (pair) gemm(y, narrow_part(x, *pair, gelu), pair->b->value.t(), true);
  if (dora) scale_columns(y, y, gains(norms, *pair), bias ? bias->value : Tensor());
  return y;
}

/// dA and dB, from du = dL/d(x W'^T) and e = s du B [T, r].
void pair_gradients(const Tensor& x, const Tensor& du, const Tensor& e, const Adapter& pair, bool gelu) {
  open_gradient(*pair.a), open_gradient(*pair.b);
  if (pair.b->grad.defined())
    gemm(pair.b->grad, du.t(), narrow_part(x, pair, gelu), !std::exchange(pair.b->fresh, false));
  if (!pair.a->grad.defined()) return;
  bool add = !std::exchange(pair.a->fresh, false);
  if (!pair.dropout.active()) return gemm(pair.a->grad, e.t(), x, add, nullptr, map_of(gelu));
  each_dropped(x, pair, gelu, [&](const Tensor& z, int64_t first) {
    gemm(pair.a->grad, e.narrow(0, first, z.size(0)).t(), z, std::exchange(add, true));
  });
}

/// dz += drop(e A)
void add_input_gradient(const Tensor& dz, const Tensor& e, const Adapter& pair) {
  if (!pair.dropout.active()) return gemm(dz, e, pair.a->value, true);
  const Tensor panel = at::empty({std::min(kDropRows, dz.size(0)), dz.size(1)}, dz.options());
  if (dz.is_meta()) return;
  for (int64_t first = 0; first < dz.size(0); first += kDropRows) {
    const int64_t n = std::min(kDropRows, dz.size(0) - first);
    const Tensor part = panel.narrow(0, 0, n);
    gemm(part, e.narrow(0, first, n), pair.a->value);
    drop_rows(part, pair.dropout, first);
    dz.narrow(0, first, n).add_(part);
  }
}

/// x = gelu'(x) * (dy W + e A), some columns at a time: the widest gradient of a block overwrites its source. For
/// weights in a dtype that products read, without dropout; e undefined: no adapter.
void lora_gelu_input_gradient(const Tensor& x, const Tensor& dy, const Tensor& w, const Tensor& e,
                              const Adapter* pair) {
  const int64_t rows = x.size(0), cols = x.size(1);
  const int64_t width = std::min(cols, round_up(div_up(cols, 16), 64));
  const Tensor panel = at::empty({rows, width}, x.options());
  if (x.is_meta()) return;
  float* values = const_cast<float*>(data(x));
  for (int64_t c = 0; c < cols; c += width) {
    const int64_t n = std::min(width, cols - c);
    gemm(panel.narrow(1, 0, n), dy, w.narrow(1, c, n));
    if (pair) gemm(panel.narrow(1, 0, n), e, pair->a->value.narrow(1, c, n), true);
    at::parallel_for(0, rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* to = values + r * cols + c;
        gelu_backward(to, data(panel) + r * width, to, n);
      }
    });
  }
}

struct AdapterHolder : torch::CustomClassHolder {
  Adapter adapter;
};

struct FrozenLinear : Function<FrozenLinear> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& anchor, Handle weight, Handle bias,
                        const Adapter* adapter, bool gelu, int64_t type, const Tensor* known) {
    ctx->saved_data["w"] = weight;
    ctx->saved_data["b"] = bias;
    ctx->saved_data["gelu"] = gelu;
    ctx->saved_data["type of x"] = static_cast<int64_t>(x.scalar_type());
    Tensor norms;
    if (adapter) {
      auto holder = c10::make_intrusive<AdapterHolder>();
      holder->adapter = *adapter;
      ctx->saved_data["adapter"] = c10::IValue::make_capsule(std::move(holder));
      if (adapter->magnitude) norms = adapted_norms(*site_of(weight), *adapter);
    }
    const Tensor y = known ? known->detach()
                           : lora_forward(x, *site_of(weight), site_of(bias), adapter, gelu, norms,
                                          static_cast<at::ScalarType>(type));
    if (norms.defined())
      ctx->save_for_backward({x, y, norms});
    else if (adapter || gelu)
      ctx->save_for_backward({x});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const WeightSite &weight = *site_of(ctx, "w"), *bias = site_of(ctx, "b");
    const bool gelu = ctx->saved_data["gelu"].toBool(), wants_input = ctx->needs_input_grad(0);
    const bool only_here = gelu && is_sole_owner(saved[0]);
    const Adapter* pair = nullptr;
    if (const auto it = ctx->saved_data.find("adapter"); it != ctx->saved_data.end())
      pair = &c10::static_intrusive_pointer_cast<AdapterHolder>(it->second.toCapsule())->adapter;
    Tensor du = grads[0].contiguous(), e;
    const auto type = static_cast<at::ScalarType>(ctx->saved_data["type of x"].toInt());
    if (!all_fp32(du, bias, pair, type)) {
      const Tensor x = saved.empty() ? Tensor() : saved[0], y = saved.size() > 1 ? saved[1] : Tensor();
      Tensor dx;
      if (wants_input && gelu && only_here)
        dx = x.detach();
      else if (wants_input)
        dx = at::empty({du.size(0), in_dim(weight)}, du.options().dtype(type));
      backward_by_rows({x, weight, bias, pair, gelu, saved.size() > 2 ? saved[2] : Tensor()}, du, y, dx);
      return {dx, {}, {}, {}, {}, {}, {}, {}};
    }
    if (pair && pair->magnitude) {
      magnitude_gradient(du, saved[1], bias, *pair->magnitude);
      const Tensor dy = std::exchange(du, at::empty_like(du));
      scale_columns(du, dy, gains(saved[2], *pair), {});
    }
    if (pair) {
      e = at::empty({du.size(0), pair->a->value.size(0)}, du.options());
      gemm(e, du, pair->b->value);
      scale_in_place(e, pair->scale);
      pair_gradients(saved[0], du, e, *pair, gelu);
    }
    if (!wants_input) return {{}, {}, {}, {}, {}, {}, {}, {}};
    const bool as_it_is = weight.value.scalar_type() == at::kFloat || is_half(weight.value);
    if (only_here && as_it_is && !(pair && pair->dropout.active())) {
      lora_gelu_input_gradient(saved[0], du, weight.value, e, pair);
      return {saved[0].detach(), {}, {}, {}, {}, {}, {}, {}};
    }
    const Tensor dx = at::empty({du.size(0), in_dim(weight)}, du.options());
    frozen_product_back(dx, du, weight, false);
    if (pair) add_input_gradient(dx, e, *pair);
    if (gelu && !dx.is_meta()) gelu_backward(out_data(dx), data(dx), data(saved[0]), dx.numel());
    return {dx, {}, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

Tensor frozen_linear(const Tensor& x, WeightSite& weight, WeightSite* bias, const Adapter* adapter,
                     const Tensor& anchor, bool gelu, at::ScalarType type, const Tensor* known) {
  if (known)
    check_internal(known->size(0) == x.size(0) && known->scalar_type() == type, "ops.lora",
                   "the known result is not that of these rows");
  const bool graph = adapter ? wants_graph({&x, &anchor}) : wants_graph({&x});
  if (graph)
    return FrozenLinear::apply(x, anchor, handle(&weight), handle(bias), adapter, gelu, static_cast<int64_t>(type),
                               known);
  if (known) return *known;
  const bool dora = adapter && adapter->magnitude;
  return lora_forward(x, weight, bias, adapter, gelu, dora ? adapted_norms(weight, *adapter) : Tensor(), type);
}

}  // namespace tessera::ops
