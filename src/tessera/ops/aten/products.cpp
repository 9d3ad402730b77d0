// Products with trained and frozen weights.
#include "tessera/device/backend.h"
#include "tessera/ops/aten/parts.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/frozen.h"
#include "tessera/ops/fused.h"
#include "tessera/ops/kernel_list.h"
#include "tessera/ops/node.h"
#include "tessera/ops/session.h"

namespace tessera::ops::aten {

namespace {

Tensor activated(const Tensor& x, bool gelu) { return gelu ? at::gelu(x, "tanh") : x; }

/// [Note: fp32 operands of bf16 products] What a unit that computes in bf16 reads beside its stream (a text, a modulation's
/// vector) may be fp32. A product of it with bf16 weights whose result is bf16 rounds it, as autocast does: widened weights
/// would be multiplied at a GPU's rate of fp32, a tenth of the other. Not to fp16, which has no room for all of fp32.
/// `read`: an input of a linear, which others may read as well.
Tensor rounded(const Tensor& x, at::ScalarType result, bool read = true) {
  if (x.scalar_type() != at::kFloat || result != at::kBFloat16) return x;
  return read && session().rounded ? session().rounded->rows(x) : x.to(result);
}

/// Multiplies a gradient of gelu(x) by gelu'(x), into x itself if `in_place`.
Tensor through_gelu(const Tensor& dz, const Tensor& x, bool in_place) {
  if (!in_place) return at::gelu_backward(dz, x, "tanh");
  Tensor dx = x.detach();
  at::gelu_backward_out(dx, dz, dx, "tanh");
  return dx;
}

/// A frozen weight [out, in] in `type`. 8-bit formats: blocks of 256 codes and their fp32 scale (frozen.h).
Tensor whole(const WeightSite& weight, at::ScalarType type) {
  const int64_t out = out_dim(weight), in = in_dim(weight);
  const at::ScalarType form = weight.value.scalar_type();
  if (form == at::kFloat || is_half(form)) return weight.value.view({out, in}).to(type);
  const Tensor blocks = weight.value.view(at::kByte).view({-1, kFrozenBlock});
  const Tensor codes = blocks.narrow(1, 0, kQuantBlock).contiguous().view(form),
               scales = blocks.narrow(1, kQuantBlock, sizeof(float)).contiguous().view(at::kFloat);
  return (codes.to(at::kFloat) * scales).flatten().narrow(0, 0, out * in).view({out, in}).to(type);
}

/// The dtype in which the products of a frozen linear compute: that of x.
at::ScalarType product_type(at::ScalarType x) { return is_half(x) ? x : at::kFloat; }

/// s drop(z) A^T [T, r], and drop(z) itself.
struct Narrowed {
  Tensor dropped, h;
};
Narrowed narrowed(const Tensor& z, const Adapter& pair) {
  Tensor dropped = z;
  if (pair.dropout.active()) ops::drop_rows(dropped = z.clone(), pair.dropout, 0);
  const Tensor h = product(dropped, pair.a->value.to(z.scalar_type()).t(), z.scalar_type()).mul_(pair.scale);
  if (pair.left_out.active()) ops::drop_rows(h, pair.left_out, 0);
  return {dropped, h};
}

Tensor gain(const Tensor& norms, const Adapter& pair) {
  return as_floats(pair.magnitude->value) / norms.clamp_min(1e-30);
}

void add_magnitude_gradient(const FrozenLinearParts& p, const Tensor& dy, const Tensor& y) {
  WeightSite& magnitude = *p.pair->magnitude;
  const Tensor grad = accumulating(magnitude);
  if (!grad.defined()) return;
  Tensor linear_part = as_floats(y);
  if (p.bias) linear_part = linear_part - as_floats(p.bias->value);
  const Tensor m = as_floats(magnitude.value), slope = (as_floats(dy) * linear_part).sum(0) / m;
  grad.add_(slope.masked_fill(m.eq(0), 0));
}

void add_adapter_gradients(const Adapter& pair, const Tensor& z, const Tensor& du, const Tensor& e) {
  open_gradient(*pair.a), open_gradient(*pair.b);
  if (!pair.a->grad.defined() && !pair.b->grad.defined()) return;
  const Narrowed n = narrowed(z, pair);
  if (pair.b->grad.defined()) product_into(pair.b->grad, du.t(), n.h, !std::exchange(pair.b->fresh, false));
  if (pair.a->grad.defined()) product_into(pair.a->grad, e.t(), n.dropped, !std::exchange(pair.a->fresh, false));
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias, bool gelu, at::ScalarType type) {
  const Tensor z = w.scalar_type() == type ? rounded(activated(x, gelu), type, !gelu) : activated(x, gelu);
  if (!bias.defined()) return product(z, w.t(), type);
  const bool alike = z.scalar_type() == type && w.scalar_type() == type && bias.scalar_type() == type;
  if (alike) return product_and_bias(z, w.t(), bias);
  return product(z, w.t(), at::kFloat).add_(as_floats(bias)).to(type);
}

Tensor linear_input_gradient(const Tensor& dy, const Tensor& w, const Tensor& x, bool gelu, bool in_place) {
  const Tensor dz = product(dy, w, x.scalar_type());
  return gelu ? through_gelu(dz, x, in_place) : dz;
}

void add_linear_input_gradient(const Tensor& dx, const Tensor& dy, const Tensor& w) {
  product_into(dx, dy, w, /*add=*/true);
}

void linear_weight_gradient(const Tensor& dw, const Tensor& dy, const Tensor& x, bool gelu, bool add) {
  product_into(dw, dy.t(), rounded(activated(x, gelu), dy.scalar_type(), !gelu), add);
}

Tensor gelu_linear_gradients(const Tensor& dy, const Tensor& w, const Tensor& x, bool in_place, const Tensor& dw,
                             bool add, Tensor* /*columns*/) {
  linear_weight_gradient(dw, dy, x, /*gelu=*/true, add);
  return linear_input_gradient(dy, w, x, /*gelu=*/true, in_place);
}

void bias_gradient(const Tensor& db, const Tensor& dy, bool add) {
  Tensor to = db;
  if (!add && !db.is_meta())
    at::sum_out(to, dy, {0}, /*keepdim=*/false, at::kFloat);
  else if (add)
    to.add_(at::sum(dy, {0}, /*keepdim=*/false, at::kFloat));
}

Tensor frozen_linear(const FrozenLinearParts& p, at::ScalarType type) {
  const Tensor z = rounded(activated(p.x, p.gelu), type, !p.gelu);
  const at::ScalarType compute = product_type(z.scalar_type());
  const bool dora = p.pair && p.pair->magnitude;
  const Tensor w = whole(p.weight, compute);
  const Tensor y = linear(z, w, p.bias && !dora ? p.bias->value : Tensor(), false, type);
  if (p.pair) product_into(y, narrowed(z, *p.pair).h, p.pair->b->value.to(compute).t(), true);
  if (!dora) return y;
  Tensor scaled = as_floats(y) * gain(p.norms, *p.pair);
  if (p.bias) scaled.add_(as_floats(p.bias->value));
  return scaled.to(type);
}

Tensor frozen_linear_backward(const FrozenLinearParts& p, const Tensor& dy, const Tensor& y, InputGradient wanted,
                              at::ScalarType type) {
  const at::ScalarType compute = product_type(type);
  Tensor du = dy.to(compute), e;
  if (p.pair && p.pair->magnitude) {
    add_magnitude_gradient(p, dy, y);
    du = (as_floats(dy) * gain(p.norms, *p.pair)).to(compute);
  }
  if (p.pair) {
    e = product(du, p.pair->b->value.to(compute), compute).mul_(p.pair->scale);
    if (p.pair->left_out.active()) ops::drop_rows(e, p.pair->left_out, 0);
    add_adapter_gradients(*p.pair, activated(p.x, p.gelu), du, e);
  }
  if (wanted == InputGradient::none) return {};
  const Tensor dz = product(du, whole(p.weight, compute), compute);
  if (p.pair && p.pair->dropout.active()) {
    const Tensor back = product(e, p.pair->a->value.to(compute), compute);
    ops::drop_rows(back, p.pair->dropout, 0);
    dz.add_(back);
  } else if (p.pair) {
    product_into(dz, e, p.pair->a->value.to(compute), true);
  }
  return p.gelu ? through_gelu(dz, p.x, wanted == InputGradient::in_place) : dz;
}

Tensor frozen_matrix(const WeightSite& weight, at::ScalarType type) { return whole(weight, type); }

namespace {

/// What cuBLAS takes of 8-bit operands: as many columns of a result as a multiple of 16.
Fp8Lines padded(const Fp8Lines& lines) {
  const int64_t n = lines.codes.size(0), all = round_up(n, kFp8Pad);
  if (n == all) return lines;
  const Tensor codes = at::zeros({all, lines.codes.size(1)}, lines.codes.options().dtype(at::kByte)),
               scales = at::ones({all}, lines.scales.options());
  codes.narrow(0, 0, n).copy_(lines.codes.view(at::kByte));
  scales.narrow(0, 0, n).copy_(lines.scales);
  return {codes.view(lines.codes.scalar_type()), scales};
}

/// Whether the tensors are a GPU's, or stand for one's.
bool of_gpu(const Tensor& t) { return t.is_meta() ? session().target || device::used() : t.is_cuda(); }

/// a b^T of the codes alone, or with their scales, on a GPU: fp32 or 16 bits. [Note: sums of 8-bit products on GPUs]
Tensor multiplied(const Fp8Lines& a, const Fp8Lines& right, const Tensor& bias, bool scaled, at::ScalarType type) {
  const Fp8Lines b = padded(right);
  const int64_t m = a.codes.size(0), n = right.codes.size(0), all = b.codes.size(0);
  const Tensor one = scaled ? Tensor() : at::ones({}, a.scales.options());
  if (a.codes.is_meta()) {
    const Tensor y = at::empty({m, all}, a.scales.options().dtype(type));
    return all == n ? y : y.narrow(1, 0, n).contiguous();
  }
  if (m == 0 || a.codes.size(1) == 0) {
    const Tensor y = at::zeros({m, n}, a.scales.options().dtype(type));
    return bias.defined() ? y.add(bias) : y;
  }
  const bool takes_bias = bias.defined() && all == n;
  const Tensor y =
      at::_scaled_mm(a.codes, b.codes.t(), scaled ? a.scales.unsqueeze(1) : one, scaled ? b.scales.unsqueeze(0) : one,
                     takes_bias ? std::optional<Tensor>(bias.to(type)) : std::nullopt, std::nullopt, type,
                     /*use_fast_accum=*/false);
  const Tensor own = all == n ? y : y.narrow(1, 0, n).contiguous();
  return bias.defined() && !takes_bias ? own.add_(bias) : own;
}

/// The same by products of fp32, where no kernel takes codes.
Tensor multiplied_wide(const Fp8Lines& a, const Fp8Lines& b) {
  return at::mm(a.codes.to(at::kFloat), b.codes.to(at::kFloat).t()).mul_(a.scales.unsqueeze(1)).mul_(b.scales);
}

}  // namespace

Fp8Lines fp8_lines(const Tensor& x, at::ScalarType format, bool turned, bool gelu) {
  const double top = format == at::kFloat8_e5m2 ? 57344 : 448;
  const Tensor z = activated(x, gelu), lines = turned ? z.t() : z;
  const int64_t length = lines.size(1), stride = round_up(length, kFp8Pad);
  const auto options = x.options().dtype(at::kFloat);
  const Tensor codes = at::empty({lines.size(0), stride}, x.options().dtype(format)),
               rows = at::empty(lines.sizes(), options);
  Tensor scales = at::empty({lines.size(0)}, options), sizes = at::empty(lines.sizes(), options),
         missing = at::empty(lines.sizes(), options.dtype(at::kBool));
  if (x.is_meta()) return {codes, scales};  // not all of these operators have meta forms
  if (length == 0) return {codes, scales.fill_(1e-12)};
  rows.copy_(lines);
  at::abs_out(sizes, rows);
  at::ne_out(missing, rows, rows);  // NaN changes no scale
  at::amax_out(scales, sizes.masked_fill_(missing, 0), {1});
  scales.div_(top).clamp_min_(1e-12);
  rows.div_(scales.unsqueeze(1));
  double* counts = fp8_counts(format);
  const Tensor clipped = counts ? rows.abs().gt(top * kBeyondFp8).sum() : Tensor();
  codes.narrow(1, 0, length).copy_(rows.clamp_(-top, top));
  if (counts) {  // of this table alone, which is no GPU's: it takes memory of its own
    const Tensor zeros = codes.narrow(1, 0, length).view(at::kByte).bitwise_and(0x7f).eq(0).logical_and_(lines.ne(0));
    at::from_blob(counts, {3}, at::TensorOptions(at::kDouble).device(x.device()))
        .add_(at::stack({at::full_like(clipped, lines.numel()), zeros.sum(), clipped}));
  }
  if (stride > length) codes.view(at::kByte).narrow(1, length, stride - length).zero_();
  return {codes, scales};
}

Tensor fp8_product(const Fp8Lines& a, const Fp8Lines& b, const Tensor& bias, at::ScalarType type) {
  if (of_gpu(a.codes)) return multiplied(a, b, bias, /*scaled=*/true, type);
  const Tensor y = multiplied_wide(a, b);
  return (bias.defined() ? y.add_(as_floats(bias)) : y).to(type);
}

/// The scales are multiplied here: with fp32 results LibTorch has scales of lines on sm_90 alone.
void fp8_product_into(const Tensor& out, const Fp8Lines& a, const Fp8Lines& b, bool add) {
  Tensor to = out;
  const Tensor y = of_gpu(a.codes)
                       ? multiplied(a, b, {}, /*scaled=*/false, at::kFloat).mul_(a.scales.unsqueeze(1)).mul_(b.scales)
                       : multiplied_wide(a, b);
  add ? to.add_(y) : to.copy_(y);
}

Tensor adapted_squares(const WeightSite& weight, const Adapter& adapter) {
  const Tensor w = whole(weight, at::kFloat);
  if (adapter.kind != Adapter::Kind::low_rank) {
    const Tensor changed = w.clone();
    add_change_to(changed, adapter, 0);
    return changed.square_().sum(1);
  }
  return at::addmm(w, as_floats(adapter.b->value), as_floats(adapter.a->value), 1, adapter.scale).square().sum(1);
}

}  // namespace tessera::ops::aten
