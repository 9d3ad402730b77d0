// RMSNorm over the full width, optionally followed by the rotary embedding of neighbouring pairs.
#include "tessera/base/check.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/node.h"
#include "tessera/ops/rebuild.h"

namespace tessera::ops {

namespace {

/// The sums of this rank's columns made those of all ranks; undefined without sharding.
template <typename Sums>
Tensor sum_of_all(const SharedWidth* shared, const Sums& own) {
  if (!shared) return {};
  const Tensor total = own();
  shared->sum_of_all(total);
  return total;
}

int64_t width_of(const Tensor& x, const SharedWidth* shared) { return shared ? shared->width : x.size(1); }

/// Computes y and, in `stats`, the rstd of each token; if these are known, only y, without communication.
Tensor normed(const Tensor& x, const WeightSite& w, const RotaryTables& rotary, double eps, const SharedWidth* shared,
              Tensor& stats) {
  check_internal(x.dim() == 2 && x.is_contiguous(), "ops.rms_norm", "x must be a contiguous [tokens, channels]");
  const Tensor weight = as_floats(w.value);
  Tensor squares;
  if (!stats.defined()) squares = sum_of_all(shared, [&] { return kernels(x).row_squares(x); });
  return kernels(x).rms_norm(x, weight, rotary, eps, width_of(x, shared), squares, stats);
}

Tensor run_forward(const Tensor& x, const WeightSite& w, const RotaryTables& rotary, double eps,
                   const SharedWidth* shared, Tensor& stats) {
  const Tensor y = normed(x, w, rotary, eps, shared, stats);
  if (Rebuilds* rebuilds = session().rebuilds)
    rebuilds->register_value(y, {x, rotary.cos, rotary.sin, stats}, [&w, eps](const std::vector<Tensor>& from) {
      Tensor known = from[3];
      return normed(from[0], w, {from[1], from[2]}, eps, nullptr, known);
    });
  return y;
}

struct RmsNorm : Function<RmsNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& anchor, Handle w,
                        const std::optional<Tensor>& cos, const std::optional<Tensor>& sin, double eps,
                        const SharedWidth* shared) {
    Tensor stats;
    const RotaryTables rotary{cos.value_or(Tensor()), sin.value_or(Tensor())};
    Tensor y = run_forward(x, *site_of(w), rotary, eps, shared, stats);
    ctx->saved_data["shared"] = reinterpret_cast<int64_t>(shared);
    ctx->saved_data["w"] = w;
    ctx->save_for_backward({x, stats, rotary.cos, rotary.sin});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &stats = saved[1], dy = grads[0].contiguous();
    const RotaryTables rotary{saved[2], saved[3]};
    WeightSite& w = *site_of(ctx, "w");
    const Tensor dw = accumulating(w);
    const auto* shared = reinterpret_cast<const SharedWidth*>(ctx->saved_data["shared"].toInt());
    const Kernels& k = kernels(x);
    Tensor dx, dots;
    if (ctx->needs_input_grad(0)) dx = at::empty_like(x);
    const Tensor weight = as_floats(w.value);
    if (dx.defined()) dots = sum_of_all(shared, [&] { return k.rms_norm_dots(dy, x, weight, rotary, dx); });
    k.rms_norm_backward(dy, x, weight, rotary, stats, width_of(x, shared), dots, dx, dw);
    return {dx, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

Tensor rms_norm(const Tensor& x, WeightSite& weight, double eps, const Tensor& anchor, const SharedWidth* shared) {
  if (wants_graph({&x, &anchor}))
    return RmsNorm::apply(x, anchor, handle(&weight), std::optional<Tensor>(), std::optional<Tensor>(), eps, shared);
  Tensor stats;
  return run_forward(x, weight, {}, eps, shared, stats);
}

Tensor rms_norm_rope(const Tensor& x, WeightSite& weight, const Tensor& cos, const Tensor& sin, int64_t heads,
                     double eps, const Tensor& anchor, const SharedWidth* shared) {
  const bool fits = cos.sizes() == at::IntArrayRef({x.size(0), x.size(1) / heads / 2}) && cos.sizes() == sin.sizes();
  check_internal(fits && cos.is_contiguous() && sin.is_contiguous(), "ops.rms_norm_rope",
                 "cos and sin must be [tokens, channels / heads / 2]");
  if (wants_graph({&x, &anchor}))
    return RmsNorm::apply(x, anchor, handle(&weight), std::optional<Tensor>(cos), std::optional<Tensor>(sin), eps,
                          shared);
  Tensor stats;
  return run_forward(x, weight, {cos, sin}, eps, shared, stats);
}

}  // namespace tessera::ops
