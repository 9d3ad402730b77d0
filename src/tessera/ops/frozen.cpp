#include "tessera/ops/frozen.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/eight_bit.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/node.h"
#include "tessera/ops/tangent.h"
#include "tessera/ops/tensor.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::ops {

using at::Tensor;

namespace {

constexpr int64_t kPanelElements = int64_t{1} << 20;  // 4 MiB of fp32

bool in_blocks(at::ScalarType form) { return form == at::kChar || form == at::kFloat8_e4m3fn; }

/// One block as a row of 8-bit floats.
Fp8Tiles one_block(int64_t count) { return {.rows = 1, .cols = count, .tile_rows = 1, .tile_cols = kQuantBlock}; }

void write_block(uint8_t* block, const float* x, int64_t n, at::ScalarType form) {
  float scale = 0;
  if (form == at::kChar)
    quantise_int8(reinterpret_cast<int8_t*>(block), &scale, x, n);
  else
    quantise_fp8(block, &scale, x, one_block(n));
  std::memcpy(block + kQuantBlock, &scale, sizeof(scale));
}

void read_block(float* x, const uint8_t* block, int64_t n, at::ScalarType form) {
  float scale = 0;
  std::memcpy(&scale, block + kQuantBlock, sizeof(scale));
  if (form == at::kChar)
    dequantise_int8(x, reinterpret_cast<const int8_t*>(block), &scale, n);
  else
    dequantise_fp8(x, block, &scale, one_block(n));
}

/// Calls each(block, first element, count) for all blocks of `count` elements, on all threads.
template <class Each>
void each_frozen_block(int64_t count, const Each& each) {
  at::parallel_for(0, div_up(count, kQuantBlock), 64, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) each(b, b * kQuantBlock, std::min(kQuantBlock, count - b * kQuantBlock));
  });
}

/// Calls body(panel [n, in], first, n) for all rows of W; once for the whole matrix if products can read its dtype.
template <class Body>
void each_panel(const WeightSite& weight, const Body& body) {
  const int64_t out = out_dim(weight), in = in_dim(weight), rows = panel_rows(weight);
  if (!in_blocks(weight.value.scalar_type())) return body(weight.value.view({out, in}), 0, out);
  const Tensor panel = at::empty({rows, in}, weight.value.options().dtype(at::kFloat));
  if (weight.value.is_meta()) return;
  for (int64_t first = 0; first < out; first += rows) {
    const int64_t n = std::min(rows, out - first);
    const Tensor part = panel.narrow(0, 0, n);
    widen_rows(part, weight, first);
    body(part, first, n);
  }
}

}  // namespace

int64_t out_dim(const WeightSite& w) { return in_blocks(w.value.scalar_type()) ? w.blocks[0] : w.value.size(0); }
int64_t in_dim(const WeightSite& w) {
  return in_blocks(w.value.scalar_type()) ? w.blocks[1] : w.value.numel() / w.value.size(0);
}

void write_stored(void* to, const float* values, int64_t count, at::ScalarType form) {
  if (is_half(form)) return narrow(to, values, form, count);
  check_internal(in_blocks(form), "ops.frozen", "no form of a frozen weight");
  each_frozen_block(count, [&](int64_t b, int64_t first, int64_t n) {
    write_block(static_cast<uint8_t*>(to) + b * kFrozenBlock, values + first, n, form);
  });
}

void read_stored(float* values, const void* from, int64_t count, at::ScalarType form) {
  if (is_half(form)) return widen(values, from, form, count);
  check_internal(in_blocks(form), "ops.frozen", "no form of a frozen weight");
  each_frozen_block(count, [&](int64_t b, int64_t first, int64_t n) {
    read_block(values + first, static_cast<const uint8_t*>(from) + b * kFrozenBlock, n, form);
  });
}

WeightSite freeze(const Tensor& source, at::ScalarType form) {
  const Tensor x = source.contiguous();
  WeightSite site;
  site.frozen = true;
  if (form == at::kFloat || is_half(form)) {
    site.value = x.to(form);
    return site;
  }
  site.blocks = {x.size(0), x.numel() / x.size(0)};
  site.value = at::empty({div_up(x.numel(), kQuantBlock) * kFrozenBlock}, x.options().dtype(form));
  if (!x.is_meta()) write_stored(host_pointer<void>(site.value), data(x), x.numel(), form);
  return site;
}

int64_t panel_rows(const WeightSite& weight) {
  const int64_t in = in_dim(weight), step = kQuantBlock / std::gcd(kQuantBlock, in);
  return std::min(round_up(std::max<int64_t>(kPanelElements / in, 1), step), round_up(out_dim(weight), step));
}

void widen_rows(const Tensor& out, const WeightSite& weight, int64_t first) {
  const int64_t begin = first * in_dim(weight), count = out.numel();
  const auto* bytes = static_cast<const uint8_t*>(host_pointer<const void>(weight.value));
  const at::ScalarType form = weight.value.scalar_type();
  if (form == at::kFloat) {
    std::copy_n(data(weight.value) + begin, count, out_data(out));
    return;
  }
  check_internal(!in_blocks(form) || begin % kQuantBlock == 0, "ops.frozen", "a panel must begin with a block");
  read_stored(out_data(out), bytes + (in_blocks(form) ? begin / kQuantBlock * kFrozenBlock : begin * 2), count, form);
}

void frozen_product(const Tensor& y, const Tensor& x, const WeightSite& weight, bool add, Map x_map) {
  check_internal(weight.value.defined(), "ops.frozen", "the weight is used while it is not gathered");
  each_panel(weight, [&](const Tensor& panel, int64_t first, int64_t n) {
    gemm(y.narrow(1, first, n), x, panel.t(), add, x_map);
  });
}

void frozen_product_back(const Tensor& dx, const Tensor& dy, const WeightSite& weight, bool add) {
  check_internal(weight.value.defined(), "ops.frozen", "the weight is used while it is not gathered");
  each_panel(weight, [&](const Tensor& panel, int64_t first, int64_t n) {
    gemm(dx, dy.narrow(1, first, n), panel, add || first > 0);
  });
}

// y = z W^T + b + s (drop(z) A^T) B^T, z = x or gelu(x).

HostBytes stored_at(const Tensor& shard, DType stored, int64_t element, int64_t count, HostBytes::Contents contents) {
  check_internal(stored == DType::bf16 || element % plan::kFlatAlign == 0, "ops.frozen",
                 "parameters stored in blocks are set and read from the start of a block");
  return {static_cast<uint8_t*>(address(shard)) + plan::stored_bytes(stored, element),
          plan::stored_bytes(stored, count), on_device(shard), contents};
}

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

bool multiplies_in_fp8(const Tensor& x, const Adapter* adapter, at::ScalarType type) {
  return takes_fp8(x, type) && !(adapter && adapter->magnitude);
}

/// drop(z) of an adapter's pair, and h = s drop(z) A^T, in 16 bits.
struct PairInputs {
  PairInputs(const FrozenLinearParts& p, const Tensor& z) : dropped(z) {
    if (p.pair->dropout.active()) drop_rows(dropped = z.clone(), p.pair->dropout, 0);
    h = kernels(z).linear(dropped, p.pair->a->value, {}, false, z.scalar_type());
    h.mul_(p.pair->scale);
    if (p.pair->left_out.active()) drop_rows(h, p.pair->left_out, 0);
  }
  Tensor dropped, h;
};

Fp8Weight eight_bits_of(const WeightSite& weight, const Tensor& beside, at::ScalarType type) {
  return {weight, [&] { return kernels(beside).frozen_matrix(weight, type); }};
}

/// The base's product in 8 bits, and the adapter's beside it.
Tensor forward_in_fp8(const FrozenLinearParts& p, at::ScalarType type) {
  const Tensor z = p.gelu ? kernels(p.x).gelu_tanh(p.x) : p.x, bias = p.bias ? p.bias->value : Tensor();
  const Tensor y = fp8_linear(z, eight_bits_of(p.weight, z, z.scalar_type()), bias, false, type);
  if (p.gelu && session().fp8) session().fp8->clear();  // no other linear reads z
  if (p.pair && p.pair->kind == Adapter::Kind::low_rank)
    y.add_(kernels(z).linear(PairInputs(p, z).h, p.pair->b->value, {}, false, type));
  else if (p.pair)
    add_change(y, p.x, *p.pair, p.gelu);
  return y;
}

/// The gradient of z, undefined unless wanted, and those of the pair.
Tensor backward_in_fp8(const FrozenLinearParts& p, const Tensor& dy, bool wanted, at::ScalarType type) {
  Tensor dz;
  if (wanted) dz = fp8_input_gradient(dy, eight_bits_of(p.weight, dy, type), type);
  if (!p.pair || p.pair->kind != Adapter::Kind::low_rank) return dz;
  WeightSite &a = *p.pair->a, &b = *p.pair->b;
  open_gradient(a), open_gradient(b);
  const Kernels& table = kernels(dy);
  const PairInputs inputs(p, p.gelu ? table.gelu_tanh(p.x) : p.x);
  if (b.grad.defined()) table.linear_weight_gradient(b.grad, dy, inputs.h, false, !std::exchange(b.fresh, false));
  const Tensor e = table.linear_input_gradient(dy, b.value, inputs.h, false, false).mul_(p.pair->scale);
  if (p.pair->left_out.active()) drop_rows(e, p.pair->left_out, 0);
  if (a.grad.defined()) table.linear_weight_gradient(a.grad, e, inputs.dropped, false, !std::exchange(a.fresh, false));
  if (!wanted) return dz;
  const Tensor back = table.linear_input_gradient(e, a.value, inputs.dropped, false, false);
  if (p.pair->dropout.active()) drop_rows(back, p.pair->dropout, 0);
  return dz.add_(back);
}

Tensor run_forward(const FrozenLinearParts& p, at::ScalarType type) {
  check_internal(p.x.dim() == 2 && p.x.is_contiguous() && (p.x.scalar_type() == at::kFloat || is_half(p.x)), "ops.lora",
                 "x must be a contiguous matrix of fp32, bf16 or fp16");
  check_internal(p.weight.value.defined(), "ops.lora", "the weight is used while it is not gathered");
  session().products.results += flops_of(p.x.size(0), p.weight);
  if (p.pair && p.pair->kind != Adapter::Kind::low_rank) {
    check_change(*p.pair, out_dim(p.weight), p.x.size(1));
    if (p.fp8) return forward_in_fp8(p, type);
    const bool dora = p.norms.defined();
    const Tensor y = kernels(p.x).frozen_linear({p.x, p.weight, dora ? nullptr : p.bias, nullptr, p.gelu, {}}, type);
    add_change(y, p.x, *p.pair, p.gelu);
    if (dora) scale_by_magnitude(y, *p.pair, p.norms, p.bias);
    return y;
  }
  if (p.pair) check_adapter(p.x, p.weight, *p.pair);
  if (p.fp8) return forward_in_fp8(p, type);
  return kernels(p.x).frozen_linear(p, type);
}

/// |W'| [out], with a magnitude.
Tensor norms_of(const Tensor& x, const WeightSite& weight, const Adapter* adapter) {
  if (!adapter || !adapter->magnitude) return {};
  const Tensor norms = kernels(x).adapted_squares(weight, *adapter);
  if (adapter->whole_rows) adapter->whole_rows->sum_of_all(norms);
  if (!norms.is_cpu())  // in fp64: LibTorch's root of fp32 is not everywhere the nearest
    return norms.copy_(norms.to(at::kDouble).sqrt_());
  for (int64_t i = 0; i < norms.numel(); ++i) out_data(norms)[i] = std::sqrt(out_data(norms)[i]);
  return norms;
}

/// The gradient of x, undefined unless wanted, and those of the factors.
Tensor backward_of_change(const FrozenLinearParts& p, const Tensor& dy, bool wanted, at::ScalarType type) {
  Tensor dz;
  if (p.fp8)
    dz = backward_in_fp8(p, dy, wanted, type);
  else if (wanted)
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
    const bool fp8 = multiplies_in_fp8(x, adapter, static_cast<at::ScalarType>(type));
    ctx->saved_data["fp8"] = fp8;
    ctx->saved_data["type of x"] = static_cast<int64_t>(x.scalar_type());
    const Tensor norms = norms_of(x, *site_of(weight), adapter);
    if (adapter) {
      auto holder = c10::make_intrusive<AdapterHolder>();
      holder->adapter = *adapter;
      ctx->saved_data["adapter"] = c10::IValue::make_capsule(std::move(holder));
    }
    const Tensor y = known ? known->detach()
                           : run_forward({x, *site_of(weight), site_of(bias), adapter, gelu, norms, fp8},
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
    const bool fp8 = ctx->saved_data["fp8"].toBool();
    InputGradient wanted = ctx->needs_input_grad(0) ? InputGradient::fresh : InputGradient::none;
    if (wanted == InputGradient::fresh && gelu && is_sole_owner(saved[0])) wanted = InputGradient::in_place;
    const Adapter* pair = nullptr;
    if (const auto it = ctx->saved_data.find("adapter"); it != ctx->saved_data.end())
      pair = &c10::static_intrusive_pointer_cast<AdapterHolder>(it->second.toCapsule())->adapter;
    const Tensor x = saved.empty() ? Tensor() : saved[0], y = saved.size() > 1 ? saved[1] : Tensor(),
                 norms = saved.size() > 2 ? saved[2] : Tensor(), dy = grads[0].contiguous();
    const auto type = static_cast<at::ScalarType>(ctx->saved_data["type of x"].toInt());
    if (wanted != InputGradient::none) session().products.results += flops_of(dy.size(0), weight);
    if (pair && pair->kind != Adapter::Kind::low_rank) {
      const Tensor du = norms.defined() ? magnitude_gradients(dy, y, *pair, norms, bias) : dy;
      return {backward_of_change({x, weight, bias, pair, gelu, {}, fp8}, du, wanted != InputGradient::none, type),
              {},
              {},
              {},
              {},
              {},
              {},
              {}};
    }
    if (fp8) {
      const FrozenLinearParts parts = {x, weight, bias, pair, gelu, {}, fp8};
      const Tensor dz = backward_in_fp8(parts, dy, wanted != InputGradient::none, type);
      return {dz.defined() && gelu ? kernels(dz).gelu_tanh_gradient(dz, x) : dz, {}, {}, {}, {}, {}, {}, {}};
    }
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
  if (moves(x)) {
    check_internal(!known, "ops.lora", "forward mode recomputes nothing");
    const auto [value, tangent] = parts(x);
    const Tensor dx = gelu ? kernels(value).gelu_tanh_gradient(tangent, value) : tangent;
    return moving(frozen_linear(value, weight, bias, adapter, anchor, gelu, type),
                  frozen_linear(dx, weight, nullptr, adapter, anchor, false, type));
  }
  if (graph)
    return FrozenLinear::apply(x, anchor, handle(&weight), handle(bias), adapter, gelu, static_cast<int64_t>(type),
                               known);
  if (known) return *known;
  return run_forward(
      {x, weight, bias, adapter, gelu, norms_of(x, weight, adapter), multiplies_in_fp8(x, adapter, type)}, type);
}

}  // namespace tessera::ops
