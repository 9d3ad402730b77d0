// y = z W^T + b + s (drop(z) A^T) B^T, z = x or gelu(x).
#include "tessera/ops/lora.h"

#include "tessera/base/check.h"
#include "tessera/ops/frozen.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/node.h"

namespace tessera::ops {

namespace {

void check_adapter(const Tensor& x, const WeightSite& weight, const Adapter& pair) {
  check_internal(pair.a && pair.b && pair.a->value.defined() && pair.b->value.defined(), "ops.lora",
                 "the adapter is used while it is not gathered");
  check_internal(pair.a->value.dim() == 2 && pair.a->value.size(1) == x.size(1) && pair.b->value.dim() == 2 &&
                     pair.b->value.size(0) == out_dim(weight) && pair.a->value.size(0) == pair.b->value.size(1),
                 "ops.lora", "A must be [r, in] and B [out, r]");
  check_internal(!pair.magnitude || !(pair.dropout.active() || pair.left_out.active()), "ops.lora",
                 "a magnitude excludes dropout");
}

/// Of the frozen product alone: those of the pair are small beside it.
double flops_of(int64_t rows, const WeightSite& weight) {
  return 2 * static_cast<double>(rows) * static_cast<double>(out_dim(weight)) * static_cast<double>(in_dim(weight));
}

Tensor run_forward(const FrozenLinearParts& p, at::ScalarType type) {
  check_internal(p.x.dim() == 2 && p.x.is_contiguous() && (p.x.scalar_type() == at::kFloat || is_half(p.x)), "ops.lora",
                 "x must be a contiguous matrix of fp32, bf16 or fp16");
  check_internal(p.weight.value.defined(), "ops.lora", "the weight is used while it is not gathered");
  session().products.results += flops_of(p.x.size(0), p.weight);
  if (p.pair && p.pair->kind != Adapter::Kind::low_rank) {
    check_change(*p.pair, out_dim(p.weight), p.x.size(1));
    const Tensor y = kernels(p.x).frozen_linear({p.x, p.weight, p.bias, nullptr, p.gelu, {}}, type);
    add_change(y, p.x, *p.pair, p.gelu);
    return y;
  }
  if (p.pair) check_adapter(p.x, p.weight, *p.pair);
  return kernels(p.x).frozen_linear(p, type);
}

/// The gradient of x, undefined unless wanted, and those of the factors.
Tensor backward_of_change(const FrozenLinearParts& p, const Tensor& dy, bool wanted, at::ScalarType type) {
  Tensor dz;
  if (wanted)
    dz = kernels(dy).frozen_linear_backward({{}, p.weight, p.bias, nullptr, false, {}}, dy, {}, InputGradient::fresh,
                                            type);
  add_change_gradients(dz, dy, p.x, *p.pair, p.gelu);
  return wanted && p.gelu ? kernels(dz).gelu_tanh_gradient(dz, p.x) : dz;
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
      if (adapter->magnitude) norms = kernels(x).adapted_norms(*site_of(weight), *adapter);
    }
    const Tensor y = known ? known->detach()
                           : run_forward({x, *site_of(weight), site_of(bias), adapter, gelu, norms},
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
    const bool gelu = ctx->saved_data["gelu"].toBool();
    InputGradient wanted = ctx->needs_input_grad(0) ? InputGradient::fresh : InputGradient::none;
    if (wanted == InputGradient::fresh && gelu && is_sole_owner(saved[0])) wanted = InputGradient::in_place;
    const Adapter* pair = nullptr;
    if (const auto it = ctx->saved_data.find("adapter"); it != ctx->saved_data.end())
      pair = &c10::static_intrusive_pointer_cast<AdapterHolder>(it->second.toCapsule())->adapter;
    const Tensor x = saved.empty() ? Tensor() : saved[0], y = saved.size() > 1 ? saved[1] : Tensor(),
                 norms = saved.size() > 2 ? saved[2] : Tensor(), dy = grads[0].contiguous();
    const auto type = static_cast<at::ScalarType>(ctx->saved_data["type of x"].toInt());
    if (wanted != InputGradient::none) session().products.results += flops_of(dy.size(0), weight);
    if (pair && pair->kind != Adapter::Kind::low_rank)
      return {backward_of_change({x, weight, bias, pair, gelu, {}}, dy, wanted != InputGradient::none, type),
              {},
              {},
              {},
              {},
              {},
              {},
              {}};
    const Tensor dx = kernels(dy).frozen_linear_backward({x, weight, bias, pair, gelu, norms}, dy, y, wanted, type);
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
  return run_forward({x, weight, bias, adapter, gelu, dora ? kernels(x).adapted_norms(weight, *adapter) : Tensor()},
                     type);
}

}  // namespace tessera::ops
