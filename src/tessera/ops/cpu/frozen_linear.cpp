// Products with frozen weights and adapters on CPUs: y = z W^T + b + s (drop(z) A^T) B^T, z = x or gelu(x), and with a
// magnitude (DoRA, ops/frozen.h) y = (m / |W'|) (x W'^T) + b. h = s drop(z) A^T [T, r] and its gradient are small and
// recomputed when needed; drop(z) exists for some rows at a time.
#include <ATen/Parallel.h>

#include "tessera/ops/activations.h"
#include "tessera/ops/frozen.h"
#include "tessera/ops/gemm.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/kernel_list.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/node.h"

namespace tessera::ops::cpu {

namespace {

/// out[r][c] = gain[c] * x[r][c] + shift[c]; without shift 0.
TESSERA_KERNEL void gain_kernel(float* __restrict out, const float* __restrict x, const float* __restrict gain,
                                const float* __restrict shift, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) out[r * cols + c] = gain[c] * x[r * cols + c] + (shift ? shift[c] : 0.0f);
}

TESSERA_KERNEL float squared_length(const float* x, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

/// Sums over rows of dy * (y - b), for columns begin..end.
TESSERA_KERNEL void add_products(float* __restrict sums, const float* __restrict dy, const float* __restrict y,
                                 const float* __restrict b, int64_t rows, int64_t ld, int64_t n) {
  for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) sums[c] += dy[r * ld + c] * (y[r * ld + c] - (b ? b[c] : 0.0f));
}

/// m / |W'| [out], fp32.
Tensor gains(const Tensor& norms, const Adapter& pair) {
  const Tensor gain = at::empty_like(norms), magnitude = as_floats(pair.magnitude->value);
  if (!gain.is_meta())
    for (int64_t i = 0; i < gain.numel(); ++i)
      out_data(gain)[i] = data(magnitude)[i] / std::max(data(norms)[i], 1e-30f);
  return gain;
}

/// out = x * gain + shift by columns, fp32; undefined shift: 0.
void scale_columns(const Tensor& out, const Tensor& x, const Tensor& gain, const Tensor& shift) {
  if (x.is_meta()) return;
  at::parallel_for(0, x.size(0), 16, [&](int64_t begin, int64_t end) {
    gain_kernel(out_data(out) + begin * x.size(1), data(x) + begin * x.size(1), data(gain),
                shift.defined() ? data(shift) : nullptr, end - begin, x.size(1));
  });
}

/// sums [cols] += the sum over rows of dy * (y - bias); undefined bias: 0.
void add_magnitude_gradient(const Tensor& dy, const Tensor& y, const Tensor& bias, const Tensor& sums) {
  const int64_t cols = dy.size(1);
  at::parallel_for(0, cols, 256, [&](int64_t begin, int64_t end) {
    add_products(out_data(sums) + begin, data(dy) + begin, data(y) + begin,
                 bias.defined() ? data(bias) + begin : nullptr, dy.size(0), cols, end - begin);
  });
}

/// Adds dm = sum over rows of dy * x W'^T / |W'| to the site's gradient, where x W'^T / |W'| = (y - b) / m.
void magnitude_gradient(const Tensor& dy, const Tensor& y, const WeightSite* bias, WeightSite& magnitude) {
  open_gradient(magnitude);
  if (!magnitude.grad.defined()) return;
  const bool fresh = std::exchange(magnitude.fresh, false);
  if (dy.is_meta()) return;
  const int64_t cols = dy.size(1);
  at::parallel_for(0, cols, 256, [&](int64_t begin, int64_t end) {
    std::vector<float> sums(static_cast<size_t>(end - begin), 0.0f);
    add_products(sums.data(), data(dy) + begin, data(y) + begin, bias ? data(bias->value) + begin : nullptr, dy.size(0),
                 cols, end - begin);
    for (int64_t c = begin; c < end; ++c) {
      const float m = data(magnitude.value)[c], slope = m == 0 ? 0 : sums[static_cast<size_t>(c - begin)] / m;
      float& grad = out_data(magnitude.grad)[c];
      grad = fresh ? slope : grad + slope;
    }
  });
}

constexpr int64_t kFrozenRows = 256;

/// Widens as many rows of a tensor as `to` has, from `first` on.
void read_rows(const Tensor& to, const Tensor& from, int64_t first, bool gelu) {
  if (to.is_meta()) return;
  const int64_t cols = to.size(1);
  const Values values(from);
  at::parallel_for(0, to.size(0), 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* line = out_data(to) + r * cols;
      const float* row = values.read((first + r) * cols, cols, line);
      if (row != line) std::copy_n(row, cols, line);
      if (gelu) gelu_in_place(line, cols);
    }
  });
}

/// The reverse, rounded if `to` is 16-bit.
void store_rows(const Tensor& to, const Tensor& rows, int64_t first) {
  if (to.is_meta()) return;
  const int64_t cols = rows.size(1);
  const Results results(to);
  at::parallel_for(0, rows.size(0), 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* line = out_data(rows) + r * cols;
      float* place = results.place((first + r) * cols, line);
      if (place != line) std::copy_n(line, cols, place);
      results.store((first + r) * cols, cols, line);
    }
  });
}

/// Calls body(first row, rows) for chunks of all rows; once for meta tensors, which then allocate what one chunk does.
template <class Body>
void each_frozen_rows(const Tensor& all, const Body& body) {
  for (int64_t first = 0; first < all.size(0); first += kFrozenRows) {
    body(first, std::min(kFrozenRows, all.size(0) - first));
    if (all.is_meta()) return;
  }
}

void fill_rows(const Tensor& rows, const Tensor& values) {
  if (rows.is_meta()) return;
  for (int64_t r = 0; r < rows.size(0); ++r)
    std::copy_n(data(values), values.numel(), out_data(rows) + r * rows.size(1));
}

void drop(const Tensor& rows, const Adapter& pair, int64_t first) {
  if (pair.dropout.active() && !rows.is_meta()) cpu::drop_rows(rows, pair.dropout, first);
}

/// A gradient that accumulates over chunks of rows.
struct ChunkedGradient {
  explicit ChunkedGradient(WeightSite& site) : grad((open_gradient(site), site.grad)) {
    add = grad.defined() && !std::exchange(site.fresh, false);
  }
  void plus(const Tensor& a, const Tensor& b) { gemm(grad, a, b, std::exchange(add, true)); }
  Tensor grad;  // undefined: not needed
  bool add;
};

/// dm: the sum over rows of dy * (y - b), divided by m.
void finish_magnitude(const Tensor& sums, WeightSite& magnitude) {
  const Tensor m = as_floats(magnitude.value);
  const Tensor grad = accumulating(magnitude);
  if (!grad.defined() || grad.is_meta()) return;
  for (int64_t c = 0; c < sums.numel(); ++c) out_data(grad)[c] += data(m)[c] == 0 ? 0 : data(sums)[c] / data(m)[c];
}

/// The forward if any tensor is 16-bit: kFrozenRows rows at a time are widened, pass through all products in fp32 and are
/// rounded once. y [T, out] of dtype `type`.
Tensor forward_by_rows(const FrozenLinearParts& p, at::ScalarType type) {
  const int64_t out = out_dim(p.weight), in = in_dim(p.weight), most = std::min(kFrozenRows, p.x.size(0));
  const auto options = p.x.options().dtype(at::kFloat);
  const bool dora = p.pair && p.pair->magnitude;
  const Tensor y = at::empty({p.x.size(0), out}, p.x.options().dtype(type)), lines = at::empty({most, in}, options),
               sums = at::empty({most, out}, options),
               thin = p.pair ? at::empty({most, p.pair->a->value.size(0)}, options) : Tensor();
  const Tensor bias = p.bias ? as_floats(p.bias->value) : Tensor(), gain = dora ? gains(p.norms, *p.pair) : Tensor();
  each_frozen_rows(p.x, [&](int64_t first, int64_t n) {
    const Tensor line = lines.narrow(0, 0, n), sum = sums.narrow(0, 0, n);
    read_rows(line, p.x, first, p.gelu);
    if (bias.defined() && !dora) fill_rows(sum, bias);
    frozen_product(sum, line, p.weight, bias.defined() && !dora);
    if (p.pair) {
      const Tensor h = thin.narrow(0, 0, n);
      drop(line, *p.pair, first);
      gemm(h, line, p.pair->a->value.t());
      scale_in_place(h, p.pair->scale);
      cpu::drop_rows(h, p.pair->left_out, first);
      gemm(sum, h, p.pair->b->value.t(), true);
    }
    if (dora) scale_columns(sum, sum, gain, bias);
    store_rows(y, sum, first);
  });
  return y;
}

/// Its backward: adds the adapter's gradients to its sites and writes dx [T, in], which may be x itself; undefined if no
/// gradient is needed. `y`: the result, with a magnitude.
void backward_by_rows(const FrozenLinearParts& p, const Tensor& dy, const Tensor& y, const Tensor& dx) {
  const int64_t out = out_dim(p.weight), in = in_dim(p.weight), most = std::min(kFrozenRows, dy.size(0));
  const auto options = dy.options().dtype(at::kFloat);
  const auto room = [&](bool wanted, int64_t width) { return wanted ? at::empty({most, width}, options) : Tensor(); };
  const bool dora = p.pair && p.pair->magnitude;
  const int64_t rank = p.pair ? p.pair->a->value.size(0) : 0;
  const Tensor ups = room(true, out), lines = room(p.pair || p.gelu, in), backs = room(dx.defined(), in),
               results = room(dora, out), downs = room(p.pair, rank), thins = room(p.pair, rank);
  const Tensor bias = dora && p.bias ? as_floats(p.bias->value) : Tensor(),
               gain = dora ? gains(p.norms, *p.pair) : Tensor(), products = dora ? at::zeros({out}, options) : Tensor();
  std::optional<ChunkedGradient> da, db;
  if (p.pair) da.emplace(*p.pair->a), db.emplace(*p.pair->b);
  each_frozen_rows(dy, [&](int64_t first, int64_t n) {
    const auto of = [n](const Tensor& t) { return t.defined() ? t.narrow(0, 0, n) : t; };
    const Tensor up = of(ups), line = of(lines), back = of(backs), e = of(thins);
    read_rows(up, dy, first, false);
    if (dora) {
      const Tensor result = of(results);
      read_rows(result, y, first, false);
      if (!result.is_meta()) add_magnitude_gradient(up, result, bias, products);
      scale_columns(up, up, gain, {});
    }
    if (p.pair) {
      read_rows(line, p.x, first, p.gelu);
      drop(line, *p.pair, first);
      if (db->grad.defined()) {
        const Tensor h = of(downs);
        gemm(h, line, p.pair->a->value.t());
        scale_in_place(h, p.pair->scale);
        cpu::drop_rows(h, p.pair->left_out, first);
        db->plus(up.t(), h);
      }
      gemm(e, up, p.pair->b->value);
      scale_in_place(e, p.pair->scale);
      cpu::drop_rows(e, p.pair->left_out, first);
      if (da->grad.defined()) da->plus(e.t(), line);
    }
    if (!dx.defined()) return;
    frozen_product_back(back, up, p.weight, false);
    if (p.pair && p.pair->dropout.active()) {
      gemm(line, e, p.pair->a->value);
      drop(line, *p.pair, first);
      if (!back.is_meta()) back.add_(line);
    } else if (p.pair) {
      gemm(back, e, p.pair->a->value, true);
    }
    if (p.gelu) {
      read_rows(line, p.x, first, false);
      if (!back.is_meta()) gelu_backward(out_data(back), data(back), data(line), back.numel());
    }
    store_rows(dx, back, first);
  });
  if (dora) finish_magnitude(products, *p.pair->magnitude);
}

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

Tensor adapted_squares(const WeightSite& weight, const Adapter& adapter) {
  const int64_t out = out_dim(weight), in = in_dim(weight), rows = std::min(panel_rows(weight), out);
  const bool pair = adapter.kind == Adapter::Kind::low_rank;
  const auto options = weight.value.options().dtype(at::kFloat);
  const Tensor squares = at::empty({out}, options), panel = at::empty({rows, in}, options);
  const Tensor b = pair ? at::empty(adapter.b->value.sizes(), options) : Tensor();
  if (squares.is_meta()) {
    if (!pair) add_change_to(panel, adapter, 0);
    return squares;
  }
  if (pair) {
    b.copy_(adapter.b->value);
    scale_in_place(b, adapter.scale);
  }
  for (int64_t first = 0; first < out; first += rows) {
    const int64_t n = std::min(rows, out - first);
    const Tensor part = panel.narrow(0, 0, n);
    widen_rows(part, weight, first);
    if (pair)
      gemm(part, b.narrow(0, first, n), adapter.a->value, true);
    else
      add_change_to(part, adapter, first);
    for (int64_t r = 0; r < n; ++r) out_data(squares)[first + r] = squared_length(data(part) + r * in, in);
  }
  return squares;
}

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
