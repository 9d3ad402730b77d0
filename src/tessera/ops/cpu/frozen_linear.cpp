// Products with frozen weights and adapters on CPUs: y = z W^T + b + s (drop(z) A^T) B^T, z = x or gelu(x).
// h = s drop(z) A^T [T, r] and its gradient are small and recomputed when needed; drop(z) exists for some rows at a time.
#include <ATen/Parallel.h>

#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/cpu/dora.h"
#include "tessera/ops/cpu/frozen_rows.h"
#include "tessera/ops/frozen.h"
#include "tessera/ops/gelu.h"
#include "tessera/ops/half.h"
#include "tessera/ops/node.h"
#include "tessera/ops/scale.h"

namespace tessera::ops::cpu {

namespace {

constexpr int64_t kDropRows = 256;  // rows of drop(z) that exist at once

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
    cpu::drop_rows(part, pair.dropout, first);
    body(part, first);
  }
}

/// h = s drop(z) A^T [T, r]
Tensor narrow_part(const Tensor& x, const Adapter& pair, bool gelu) {
  const Tensor h = at::empty({x.size(0), pair.a->value.size(0)}, x.options());
  if (!pair.dropout.active())
    gemm(h, x, pair.a->value.t(), false, gelu_map(gelu));
  else
    each_dropped(x, pair, gelu,
                 [&](const Tensor& z, int64_t first) { gemm(h.narrow(0, first, z.size(0)), z, pair.a->value.t()); });
  scale_in_place(h, pair.scale);
  cpu::drop_rows(h, pair.left_out, 0);
  return h;
}

/// No tensor is 16-bit except, perhaps, the weight.
bool all_fp32(const Tensor& x, const WeightSite* bias, const Adapter* pair, at::ScalarType type) {
  return !is_half(x) && !is_half(type) && !(bias && is_half(bias->value)) && !(pair && is_half(pair->a->value));
}

/// dA and dB, from du = dL/d(x W'^T) and e = s du B [T, r].
void pair_gradients(const Tensor& x, const Tensor& du, const Tensor& e, const Adapter& pair, bool gelu) {
  open_gradient(*pair.a), open_gradient(*pair.b);
  if (pair.b->grad.defined())
    gemm(pair.b->grad, du.t(), narrow_part(x, pair, gelu), !std::exchange(pair.b->fresh, false));
  if (!pair.a->grad.defined()) return;
  bool add = !std::exchange(pair.a->fresh, false);
  if (!pair.dropout.active()) return gemm(pair.a->grad, e.t(), x, add, nullptr, gelu_map(gelu));
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
    cpu::drop_rows(part, pair.dropout, first);
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

}  // namespace

Tensor frozen_linear(const FrozenLinearParts& p, at::ScalarType type) {
  const Tensor& x = p.x;
  if (!all_fp32(x, p.bias, p.pair, type)) return forward_by_rows(p, type);
  const bool dora = p.pair && p.pair->magnitude, bias_first = p.bias && !dora;
  const Tensor y = at::empty({x.size(0), out_dim(p.weight)}, x.options());
  if (bias_first && !x.is_meta())
    for (int64_t r = 0; r < y.size(0); ++r) std::copy_n(data(p.bias->value), y.size(1), out_data(y) + r * y.size(1));
  frozen_product(y, x, p.weight, bias_first, gelu_map(p.gelu));
  if (p.pair) gemm(y, narrow_part(x, *p.pair, p.gelu), p.pair->b->value.t(), true);
  if (dora) scale_columns(y, y, gains(p.norms, *p.pair), p.bias ? p.bias->value : Tensor());
  return y;
}

Tensor frozen_linear_backward(const FrozenLinearParts& p, const Tensor& dy, const Tensor& y, InputGradient wanted,
                              at::ScalarType type) {
  const Adapter* pair = p.pair;
  Tensor du = dy, e;
  if (!all_fp32(du, p.bias, pair, type)) {
    Tensor dx;
    if (wanted == InputGradient::in_place)
      dx = p.x.detach();
    else if (wanted == InputGradient::fresh)
      dx = at::empty({du.size(0), in_dim(p.weight)}, du.options().dtype(type));
    backward_by_rows(p, du, y, dx);
    return dx;
  }
  if (pair && pair->magnitude) {
    magnitude_gradient(du, y, p.bias, *pair->magnitude);
    du = at::empty_like(dy);
    scale_columns(du, dy, gains(p.norms, *pair), {});
  }
  if (pair) {
    e = at::empty({du.size(0), pair->a->value.size(0)}, du.options());
    gemm(e, du, pair->b->value);
    scale_in_place(e, pair->scale);
    cpu::drop_rows(e, pair->left_out, 0);
    pair_gradients(p.x, du, e, *pair, p.gelu);
  }
  if (wanted == InputGradient::none) return {};
  const bool as_it_is = p.weight.value.scalar_type() == at::kFloat || is_half(p.weight.value);
  if (wanted == InputGradient::in_place && as_it_is && !(pair && pair->dropout.active())) {
    lora_gelu_input_gradient(p.x, du, p.weight.value, e, pair);
    return p.x.detach();
  }
  const Tensor dx = at::empty({du.size(0), in_dim(p.weight)}, du.options());
  frozen_product_back(dx, du, p.weight, false);
  if (pair) add_input_gradient(dx, e, *pair);
  if (p.gelu && !dx.is_meta()) gelu_backward(out_data(dx), data(dx), data(p.x), dx.numel());
  return dx;
}

}  // namespace tessera::ops::cpu
