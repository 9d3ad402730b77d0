// y = x W^T + b and y = gelu(x) W^T + b. Neither forward nor backward allocates more than its result: gelu(x) is
// computed block by block inside the products, and weight gradients are added directly to the sites' buffers.
#include <ATen/Parallel.h>

#include "tessera/base/check.h"
#include "tessera/ops/bias.h"
#include "tessera/ops/gelu.h"
#include "tessera/ops/gemm.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/node.h"
#include "tessera/ops/ops.h"

namespace tessera::ops {

namespace {

TESSERA_KERNEL void add_rows(float* __restrict out, const float* __restrict dy, int64_t rows, int64_t ld,
                             int64_t cols) {
  for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) out[c] += dy[r * ld + c];
}

/// A weight as a matrix: convolutions whose kernel equals their stride are GEMMs over flattened patches.
Tensor matrix(const Tensor& weight) { return weight.dim() == 2 ? weight : weight.view({weight.size(0), -1}); }

Tensor run_forward(const Tensor& x, const WeightSite& weight, const WeightSite* bias, at::ScalarType type, Map map) {
  check_internal(x.dim() == 2 && x.is_contiguous() && (x.scalar_type() == at::kFloat || is_half(x)), "ops.linear",
                 "x must be a contiguous matrix of fp32, bf16 or fp16");
  check_internal(weight.value.defined(), "ops.linear", "the weight is used while it is not gathered");
  const Tensor w = matrix(weight.value);
  Tensor y = at::empty({x.size(0), w.size(0)}, x.options().dtype(type));
  const Tensor offset = bias ? as_floats(bias->value) : Tensor();
  if (is_half(type)) {
    gemm_rounded(y, x, w.t(), offset, map);
    return y;
  }
  if (bias && !x.is_meta())
    for (int64_t r = 0; r < y.size(0); ++r)
      std::memcpy(out_data(y) + r * y.size(1), data(offset), y.size(1) * sizeof(float));
  gemm(y, x, w.t(), bias != nullptr, map);
  return y;
}

/// x = gelu'(x) * (dy W), some columns at a time: the widest gradient of a block overwrites its source. Columns and not
/// rows, because the product then packs each panel of W once.
void gelu_input_gradient_in_place(const Tensor& x, const Tensor& dy, const Tensor& w) {
  const int64_t rows = x.size(0), cols = x.size(1);
  const int64_t width = std::min(cols, round_up(div_up(cols, 16), 64));
  const Tensor panel = at::empty({rows, width}, x.options().dtype(at::kFloat));
  if (x.is_meta()) return;
  const Values values(x);
  const Results results(x);
  for (int64_t c = 0; c < cols; c += width) {
    const int64_t n = std::min(width, cols - c);
    gemm(panel.narrow(1, 0, n), dy, w.narrow(1, c, n));
    at::parallel_for(0, rows, 64, [&](int64_t begin, int64_t end) {
      float* space = values.half() ? half_scratch(0, n) : nullptr;
      for (int64_t r = begin; r < end; ++r) {
        const float* from = values.read(r * cols + c, n, space);
        float* to = results.place(r * cols + c, space);
        gelu_backward(to, data(panel) + r * width, from, n);
        results.store(r * cols + c, n, to);
      }
    });
  }
}

template <bool kGelu>
struct Linear : Function<Linear<kGelu>> {
  static constexpr Map kMap = kGelu ? gelu_in_place : nullptr;

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& anchor, Handle weight, Handle bias,
                        int64_t type, const Tensor* known) {
    ctx->saved_data["w"] = weight;
    ctx->saved_data["b"] = bias;
    ctx->save_for_backward({x});
    if (known) return known->detach();
    return run_forward(x, *site_of(weight), site_of(bias), static_cast<at::ScalarType>(type), kMap);
  }

  static void weight_gradients(const Tensor& x, const Tensor& dy, WeightSite& weight, WeightSite* bias) {
    if (weight.grad.defined()) gemm(matrix(weight.grad), dy.t(), x, !std::exchange(weight.fresh, false), nullptr, kMap);
    if (bias && bias->grad.defined()) bias_gradient(dy, *bias);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor x = ctx->get_saved_variables()[0], dy = grads[0].contiguous();
    WeightSite &weight = *site_of(ctx, "w"), *bias = site_of(ctx, "b");
    DeferredGradients* deferred = DeferredGradients::current();
    if (!deferred)
      weight_gradients(x, dy, weight, bias);
    else if (deferred->wants(weight) || (bias && deferred->wants(*bias)))
      deferred->add([x, dy, &weight, bias] { weight_gradients(x, dy, weight, bias); });
    Tensor dx;
    if (ctx->needs_input_grad(0) && kGelu && is_sole_owner(x)) {
      gelu_input_gradient_in_place(x, dy, matrix(weight.value));
      dx = x.detach();
    } else if (ctx->needs_input_grad(0)) {
      dx = at::empty_like(x);
      is_half(dx) ? gemm_rounded(dx, dy, matrix(weight.value)) : gemm(dx, dy, matrix(weight.value));
      if (kGelu && !x.is_meta()) gelu_backward(dx, dx, x);
    }
    return {dx, {}, {}, {}, {}, {}};
  }
};

template <bool kGelu>
Tensor apply(const Tensor& x, WeightSite& weight, WeightSite* bias, const Tensor& anchor, at::ScalarType type,
             const Tensor* known = nullptr) {
  if (known)
    check_internal(known->size(0) == x.size(0) && known->scalar_type() == type, "ops.linear",
                   "the known result is not that of these rows");
  if (!wants_graph({&x, &anchor})) return known ? *known : run_forward(x, weight, bias, type, Linear<kGelu>::kMap);
  return Linear<kGelu>::apply(x, anchor, handle(&weight), handle(bias), static_cast<int64_t>(type), known);
}

}  // namespace

void bias_gradient(const Tensor& dy, WeightSite& bias) {
  const bool fresh = std::exchange(bias.fresh, false);
  if (dy.is_meta()) return;
  float* grad = out_data(bias.grad);
  const Values values(dy);
  const int64_t cols = dy.size(1);
  at::parallel_for(0, cols, 256, [&](int64_t begin, int64_t end) {
    if (fresh) std::fill(grad + begin, grad + end, 0.0f);
    each_piece(0, dy.size(0), values.half(), kHalfRows, [&](int64_t first, int64_t rows) {
      float* space = values.half() ? half_scratch(0, rows * cols) : nullptr;
      add_rows(grad + begin, values.read_columns(first, rows, cols, begin, end, space) + begin, rows, cols,
               end - begin);
    });
  });
}

Tensor linear(const Tensor& x, WeightSite& weight, WeightSite* bias, const Tensor& anchor, at::ScalarType type) {
  return apply<false>(x, weight, bias, anchor, type);
}

Tensor gelu_linear(const Tensor& x, WeightSite& weight, WeightSite* bias, const Tensor& anchor, at::ScalarType type,
                   const Tensor* known) {
  return apply<true>(x, weight, bias, anchor, type, known);
}

}  // namespace tessera::ops
