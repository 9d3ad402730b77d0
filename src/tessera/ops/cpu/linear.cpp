// Products on CPUs. Neither forward nor backward allocates more than its result: gelu(x) is computed block by block
// inside the products, and weight gradients are added directly to the caller's buffer.
#include <ATen/Parallel.h>

#include "tessera/ops/activations.h"
#include "tessera/ops/gemm.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/kernel_list.h"
#include "tessera/ops/node.h"

namespace tessera::ops::cpu {

namespace {

TESSERA_KERNEL void add_rows(float* __restrict out, const float* __restrict dy, int64_t rows, int64_t ld,
                             int64_t cols) {
  for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) out[c] += dy[r * ld + c];
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

}  // namespace

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias, bool gelu, at::ScalarType type) {
  Tensor y = at::empty({x.size(0), w.size(0)}, x.options().dtype(type));
  const Tensor offset = bias.defined() ? as_floats(bias) : Tensor();
  if (is_half(type)) {
    gemm_rounded(y, x, w.t(), offset, gelu_map(gelu));
    return y;
  }
  if (offset.defined() && !x.is_meta())
    for (int64_t r = 0; r < y.size(0); ++r)
      std::memcpy(out_data(y) + r * y.size(1), data(offset), y.size(1) * sizeof(float));
  gemm(y, x, w.t(), offset.defined(), gelu_map(gelu));
  return y;
}

Tensor linear_input_gradient(const Tensor& dy, const Tensor& w, const Tensor& x, bool gelu, bool in_place) {
  if (in_place) {
    gelu_input_gradient_in_place(x, dy, w);
    return x.detach();
  }
  Tensor dx = at::empty_like(x);
  is_half(dx) ? gemm_rounded(dx, dy, w) : gemm(dx, dy, w);
  if (gelu && !x.is_meta()) gelu_backward(dx, dx, x);
  return dx;
}

void add_linear_input_gradient(const Tensor& dx, const Tensor& dy, const Tensor& w) {
  dx.add_(linear_input_gradient(dy, w, dx, /*gelu=*/false, /*in_place=*/false));
}

void linear_weight_gradient(const Tensor& dw, const Tensor& dy, const Tensor& x, bool gelu, bool add) {
  gemm(dw, dy.t(), x, add, nullptr, gelu_map(gelu));
}

Tensor gelu_linear_gradients(const Tensor& dy, const Tensor& w, const Tensor& x, bool in_place, const Tensor& dw,
                             bool add, Tensor* /*columns*/) {
  linear_weight_gradient(dw, dy, x, /*gelu=*/true, add);
  return linear_input_gradient(dy, w, x, /*gelu=*/true, in_place);
}

void bias_gradient(const Tensor& db, const Tensor& dy, bool add) {
  if (dy.is_meta()) return;
  float* grad = out_data(db);
  const Values values(dy);
  const int64_t cols = dy.size(1);
  at::parallel_for(0, cols, 256, [&](int64_t begin, int64_t end) {
    if (!add) std::fill(grad + begin, grad + end, 0.0f);
    each_piece(0, dy.size(0), values.half(), kHalfRows, [&](int64_t first, int64_t rows) {
      float* space = values.half() ? half_scratch(0, rows * cols) : nullptr;
      add_rows(grad + begin, values.read_columns(first, rows, cols, begin, end, space) + begin, rows, cols,
               end - begin);
    });
  });
}

}  // namespace tessera::ops::cpu
