// Sums and activations.
#include "tessera/ops/aten/parts.h"
#include "tessera/ops/kernel_list.h"
#include "tessera/ops/ranges.h"

namespace tessera::ops::aten {

Tensor sum(const Tensor& x, const Tensor& y) {
  return x.scalar_type() == y.scalar_type() ? x + y : (as_floats(x) + as_floats(y)).to(x.scalar_type());
}

Tensor sum_backward(const Tensor& up, at::ScalarType type, Tensor* /*columns*/) { return up.to(type); }

Tensor sum_of_halves(const Tensor& parts, const Tensor& bias) {
  const Tensor total = at::empty(parts.sizes().slice(1), parts.options()),
               wide = bias.defined() ? at::empty_like(total, at::kFloat) : Tensor();
  if (parts.is_meta()) return total;
  if (!wide.defined()) {
    sum_halves_rounded(total, parts.unbind(0));
    return total;
  }
  sum_halves(wide, parts.unbind(0), /*accumulate=*/false);
  wide.add_(as_floats(bias));
  narrow(total, wide);
  return total;
}

Tensor gated_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const RowIndex& rows, Tensor* /*rounded*/) {
  const Tensor out = at::empty_like(x);
  each_part(&rows, x.size(0), [&](const TokenPart& part) {
    Tensor to = part.tokens(out);
    at::addcmul_out(to, part.tokens(x), as_floats(part.tokens(y)), part.rows(gate));
  });
  return out;
}

void gated_residual_backward(const Tensor& up, const Tensor& y, const Tensor& gate, const RowIndex& rows,
                             const Tensor& dy, const Tensor& dgate, bool add, Tensor* /*columns*/) {
  begin(dgate, add);
  if (dgate.defined())
    each_part(&rows, up.size(0),
              [&](const TokenPart& part) { part.add_sums(dgate, part.tokens(up) * as_floats(part.tokens(y))); });
  if (dy.defined())
    each_part(&rows, up.size(0),
              [&](const TokenPart& part) { part.tokens(dy).copy_(part.tokens(up) * part.rows(gate)); });
}

Tensor gelu_tanh(const Tensor& x) { return at::gelu(x, "tanh"); }
Tensor gelu_tanh_gradient(const Tensor& dy, const Tensor& x) { return at::gelu_backward(dy, x, "tanh"); }

Tensor silu_glu(const Tensor& x, const Tensor& gate) { return at::silu(gate) * x; }
std::pair<Tensor, Tensor> silu_glu_gradients(const Tensor& dy, const Tensor& x, const Tensor& gate) {
  return {dy * at::silu(gate), at::silu_backward(dy * x, gate)};
}

namespace {

/// In place of differences the slopes of their errors; adds the errors to `sum`. A MiB of fp32 at a time: what the plan
/// counts for a loss has no room for more.
void slopes_of(const ErrorForm& form, const Tensor& differences, const Tensor& weights, const Tensor& sum) {
  constexpr int64_t kAtOnce = 1 << 15;
  const Tensor all = differences.view(-1), weight_of = weights.defined() ? weights.view(-1) : Tensor();
  const double c = form.c;
  const auto weight = [&](ErrorKind kind) { return form.weights[static_cast<size_t>(kind)]; };
  for (int64_t at = 0; at < all.numel(); at += kAtOnce) {
    const Tensor place = all.narrow(0, at, std::min(kAtOnce, all.numel() - at)), d = place.clone(),
                 size = d * d.sign();  // abs() and where() run on no meta tensor
    Tensor error = at::zeros_like(d);
    place.zero_();
    const auto add = [&](double by, const Tensor& value, const Tensor& slope) {
      if (by != 0) error.add_(value, by), place.add_(slope, by);
    };
    add(weight(ErrorKind::mse), d * d, 2 * d);
    add(weight(ErrorKind::mae), size, d.sign());
    const double soft =
        2 * c * weight(ErrorKind::huber) + 2 * weight(ErrorKind::smooth_l1) + weight(ErrorKind::pseudo_huber);
    if (soft != 0) {
      const Tensor root = at::sqrt(d * d + c * c);
      add(soft, root - c, d / root);
    }
    const double hard = weight(ErrorKind::true_huber) + weight(ErrorKind::true_smooth_l1) / c;
    if (hard != 0) {
      const Tensor inner = size.clamp_max(c);
      add(hard, inner * (size - inner / 2), d.clamp(-c, c));
    }
    if (weight(ErrorKind::log_cosh) != 0)
      add(weight(ErrorKind::log_cosh), size - M_LN2 + at::log1p(at::exp(-2 * size)), at::tanh(d));
    if (weight_of.defined()) {
      const Tensor here = weight_of.narrow(0, at, place.numel());
      error.mul_(here), place.mul_(here);
    }
    sum.add_(error.sum(at::kDouble));
  }
}

}  // namespace

void add_error(SampleError& error, const Tensor& prediction, const Tensor& target, const Tensor& weights,
               const ErrorForm& form, double part, double scale, const Tensor& gradient) {
  const auto count = static_cast<double>(prediction.numel());
  const Tensor sum = at::zeros({1}, prediction.options().dtype(at::kDouble));
  Tensor difference = gradient;
  at::sub_out(difference, prediction, target);
  if (form.is_mse() && weights.defined()) {  // without a tensor more: the root of w twice
    weights.sqrt_();
    sum_of_squares(sum, difference.mul_(weights));
    difference.mul_(weights);
  } else if (form.is_mse()) {
    sum_of_squares(sum, difference);
  } else {
    slopes_of(form, difference, weights, sum);
  }
  difference.mul_(static_cast<float>((form.is_mse() ? 2 : 1) * scale / count));
  const double unit = part / count;
  if (error.number.defined())
    error.number.add_(sum, unit / error.unit);
  else
    error = {sum, unit};
}

/// A MiB of fp32 at a time: what the plan counts for a loss has no room for more.
Tensor dot(const Tensor& a, const Tensor& b) {
  constexpr int64_t kAtOnce = 1 << 18;
  const Tensor x = a.reshape(-1), y = b.reshape(-1);
  Tensor sum = at::zeros({1}, a.options().dtype(at::kDouble));
  for (int64_t at = 0; at < x.numel(); at += kAtOnce) {
    const int64_t count = std::min(kAtOnce, x.numel() - at);
    sum.add_(at::sum(x.narrow(0, at, count) * y.narrow(0, at, count), at::kDouble));
  }
  return sum;
}

}  // namespace tessera::ops::aten
