// Rotary embedding, convolutions and gradients over rows, and dropout.
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/ops/aten/parts.h"
#include "tessera/ops/kernel_list.h"
#include "tessera/ops/ranges.h"

namespace tessera::ops::aten {

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t heads, bool half_split, float sign) {
  const int64_t pairs = cos.size(1), at = half_split ? 2 : 3;
  const std::vector<int64_t> shape =
      half_split ? std::vector<int64_t>{x.size(0), heads, 2, pairs} : std::vector<int64_t>{x.size(0), heads, pairs, 2};
  const Tensor parts = as_floats(x).view(shape), re = parts.select(at, 0), im = parts.select(at, 1),
               c = cos.unsqueeze(1), s = sin.unsqueeze(1) * sign;
  return at::stack({re * c - im * s, re * s + im * c}, at).view(x.sizes()).to(x.scalar_type());
}

namespace {

/// One tap of a convolution: the source row of each row, 0 where there is none, and 1 or 0 [T, 1].
struct Tap {
  Tensor source, present;
};
Tap tap_of(const Tensor& table, int64_t tap) {
  const Tensor entries = table.select(0, tap);
  return {entries.clamp_min(0).to(at::kLong), entries.ge(0).to(at::kFloat).unsqueeze(1)};
}

Tensor widened(const Tensor& x, bool silu) { return silu ? at::silu(as_floats(x)) : as_floats(x); }

/// The weights of each tap [taps, D], of w [D * taps].
Tensor by_tap(const Tensor& w, const Tensor& table) { return as_floats(w).view({-1, table.size(0)}).t(); }

}  // namespace

Tensor depthwise(const Tensor& x, const Tensor& table, const Tensor& w, const Tensor& bias, at::ScalarType type,
                 bool silu) {
  const Tensor wide = widened(x, silu), weights = by_tap(w, table);
  const Tensor y = at::zeros({table.size(1), x.size(1)}, wide.options());
  if (bias.defined()) y.add_(as_floats(bias));
  for (int64_t t = 0; t < table.size(0); ++t) {
    const Tap tap = tap_of(table, t);
    y.add_(selected(wide, tap.source).mul_(tap.present).mul_(weights.select(0, t)));
  }
  return y.to(type);
}

Tensor depthwise_input_gradient(const Tensor& up, const Tensor& table, const Tensor& w, int64_t source_rows,
                                at::ScalarType type, const Tensor& through, Tensor* /*columns*/) {
  const Tensor dy = as_floats(up), weights = by_tap(w, table), dx = at::zeros({source_rows, dy.size(1)}, dy.options());
  for (int64_t t = 0; t < table.size(0); ++t) {
    const Tap tap = tap_of(table, t);
    // Rows of one tap have different sources, so nothing is added twice to a row, in whichever order; absent ones add 0.
    dx.index_add_(0, tap.source, (dy * tap.present).mul_(weights.select(0, t)));
  }
  return (through.defined() ? at::silu_backward(dx, as_floats(through)) : dx).to(type);
}

void depthwise_weight_gradient(const Tensor& up, const Tensor& x, const Tensor& table, const Tensor& dw,
                               const Tensor& db, bool silu) {
  const Tensor dy = as_floats(up);
  if (db.defined()) bias_gradient(db, dy, /*add=*/true);
  if (!dw.defined()) return;
  const Tensor wide = widened(x, silu), weights = dw.view({-1, table.size(0)});
  for (int64_t t = 0; t < table.size(0); ++t) {
    const Tap tap = tap_of(table, t);
    weights.select(1, t).add_(selected(wide, tap.source).mul_(tap.present).mul_(dy).sum(0));
  }
}

Tensor unfold(const Tensor& x, const Tensor& table) {
  const Tensor y = at::empty({table.size(1), x.size(1), table.size(0)}, x.options());
  for (int64_t t = 0; t < table.size(0); ++t) {
    const Tap tap = tap_of(table, t);
    y.select(2, t).copy_(selected(x, tap.source).mul_(tap.present));
  }
  return y.flatten(1);
}

Tensor unfold_gradient(const Tensor& dy, const Tensor& table, int64_t source_rows) {
  const Tensor parts = dy.view({dy.size(0), -1, table.size(0)}),
               dx = at::zeros({source_rows, parts.size(1)}, dy.options().dtype(at::kFloat));
  for (int64_t t = 0; t < table.size(0); ++t) {
    const Tap tap = tap_of(table, t);
    dx.index_add_(0, tap.source, as_floats(parts.select(2, t)) * tap.present);
  }
  return dx.to(dy.scalar_type());
}

void embedding_gradient(const Tensor& grad, const Tensor& ids, const Tensor& dy) {
  if (grad.is_meta()) return;  // no meta form in LibTorch
  // With `accumulate` it sorts the ids, so that the order is fixed on GPUs too.
  grad.index_put_({ids}, as_floats(dy), /*accumulate=*/true);
}

/// LibTorch has no such words: the same are drawn where x lies.
void drop_rows(const Tensor& x, const Dropout& drop, int64_t first_row) {
  if (x.is_cpu()) return cpu_kernels().drop_rows(x, drop, first_row);
  if (!drop.active() || x.is_meta()) return;
  const int64_t row_bytes = x.stride(0) * static_cast<int64_t>(x.element_size());
  for (const DropRange& range : drop_ranges(drop, first_row, x.size(0), x.size(1), x.stride(0)))
    device::used()->drop(static_cast<char*>(address(x)) + range.row * row_bytes, x.scalar_type(), range);
}

}  // namespace tessera::ops::aten
