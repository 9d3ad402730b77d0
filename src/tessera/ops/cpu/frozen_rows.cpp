#include "tessera/ops/cpu/frozen_rows.h"

#include <ATen/Parallel.h>

#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/cpu/dora.h"
#include "tessera/ops/frozen.h"
#include "tessera/ops/gelu.h"
#include "tessera/ops/half.h"
#include "tessera/ops/node.h"
#include "tessera/ops/scale.h"

namespace tessera::ops::cpu {

namespace {

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

}  // namespace

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

}  // namespace tessera::ops::cpu
