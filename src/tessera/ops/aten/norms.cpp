// LayerNorm and RMSNorm, with statistics in fp32.
#include "tessera/ops/aten/parts.h"
#include "tessera/ops/kernel_list.h"

namespace tessera::ops::aten {

namespace {

/// (x - mean) * rstd in fp32, from stats [T, 2].
Tensor normalised(const Tensor& x, const Tensor& stats) {
  return (as_floats(x) - stats.narrow(1, 0, 1)).mul_(stats.narrow(1, 1, 1));
}

Tensor layer_statistics(const Tensor& x, double eps) {
  const Tensor wide = as_floats(x), mean = wide.mean(1, /*keepdim=*/true),
               variance = (wide - mean).square_().mean(1, /*keepdim=*/true);
  return at::cat({mean, variance.add_(eps).rsqrt_()}, 1);
}

/// Neighbouring pairs of channels as [T, heads, d_h / 2, 2], and the tables in the same shape.
Tensor rotated(const Tensor& x, const RotaryTables& rotary, double sign) {
  if (!rotary.cos.defined()) return x;
  const int64_t half = rotary.cos.size(1);
  const Tensor pairs = x.view({x.size(0), -1, half, 2}), re = pairs.select(3, 0), im = pairs.select(3, 1),
               cos = rotary.cos.unsqueeze(1), sin = rotary.sin.unsqueeze(1) * sign;
  return at::stack({re * cos - im * sin, re * sin + im * cos}, 3).view(x.sizes());
}

}  // namespace

Tensor layer_norm(const Tensor& x, const NormTables& tables, double eps, at::ScalarType type, Tensor& stats) {
  if (!stats.defined()) stats = layer_statistics(x, eps);
  const Tensor y = normalised(x, stats);
  each_part(tables.rows, x.size(0), [&](const TokenPart& part) {
    part.tokens(y).mul_(as_floats(part.rows(tables.scale)) + tables.one).add_(part.rows(tables.shift));
  });
  return y.to(type);
}

Tensor layer_norm_backward(const Tensor& dy, const Tensor& x, const NormTables& tables, const Tensor& stats,
                           const NormSums& sums, bool wanted, const Tensor& beside) {
  begin(sums.scale, sums.add_scale), begin(sums.shift, sums.add_shift);
  if (sums.scale.defined() || sums.shift.defined()) {
    const Tensor up = as_floats(dy), products = sums.scale.defined() ? normalised(x, stats).mul_(up) : Tensor();
    each_part(tables.rows, x.size(0), [&](const TokenPart& part) {
      if (sums.scale.defined()) part.add_sums(sums.scale, part.tokens(products));
      if (sums.shift.defined()) part.add_sums(sums.shift, part.tokens(up));
    });
  }
  if (!wanted) return {};
  const Tensor weighted = at::empty(x.sizes(), x.options().dtype(at::kFloat)), normal = normalised(x, stats);
  each_part(tables.rows, x.size(0), [&](const TokenPart& part) {
    part.tokens(weighted).copy_(part.tokens(dy) * (as_floats(part.rows(tables.scale)) + tables.one));
  });
  const Tensor along = (weighted * normal).mean(1, true);
  weighted.sub_(weighted.mean(1, true)).sub_(normal * along).mul_(stats.narrow(1, 1, 1));
  const Tensor dx = weighted.to(x.scalar_type());
  return beside.defined() ? dx.add_(beside) : dx;
}

Tensor row_squares(const Tensor& x) { return as_floats(x).square().sum(1); }

Tensor rms_norm(const Tensor& x, const Tensor& w, const RotaryTables& rotary, double eps, int64_t width,
                const Tensor& squares, Tensor& stats) {
  if (!stats.defined()) {
    const Tensor sums = squares.defined() ? squares : row_squares(x);
    stats = (sums / static_cast<double>(width) + eps).rsqrt();
  }
  return rotated(as_floats(x) * stats.unsqueeze(1) * w, rotary, 1).to(x.scalar_type());
}

Tensor rms_norm_dots(const Tensor& dy, const Tensor& x, const Tensor& w, const RotaryTables& rotary,
                     const Tensor& /*dx*/) {
  return (rotated(as_floats(dy), rotary, -1) * w * as_floats(x)).sum(1);
}

void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const RotaryTables& rotary,
                       const Tensor& stats, int64_t width, const Tensor& dots, const Tensor& dx, const Tensor& dw,
                       bool add, Tensor* /*columns*/) {
  begin(dw, add);
  if (dw.defined()) dw.add_((rotated(as_floats(dy), rotary, -1) * as_floats(x) * stats.unsqueeze(1)).sum(0));
  if (!dx.defined()) return;
  const Tensor weighted = rotated(as_floats(dy), rotary, -1) * w, wide = as_floats(x);
  const Tensor dot = dots.defined() ? dots : (weighted * wide).sum(1),
               back = dot * stats.pow(3) / static_cast<double>(width);
  dx.copy_(weighted.mul_(stats.unsqueeze(1)).sub_(wide * back.unsqueeze(1)));
}

}  // namespace tessera::ops::aten
