#include "tessera/ops/cpu/dora.h"

#include <ATen/Parallel.h>

#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/frozen.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/node.h"
#include "tessera/ops/scale.h"

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

}  // namespace

Tensor gains(const Tensor& norms, const Adapter& pair) {
  const Tensor gain = at::empty_like(norms), magnitude = as_floats(pair.magnitude->value);
  if (!gain.is_meta())
    for (int64_t i = 0; i < gain.numel(); ++i)
      out_data(gain)[i] = data(magnitude)[i] / std::max(data(norms)[i], 1e-30f);
  return gain;
}

void scale_columns(const Tensor& out, const Tensor& x, const Tensor& gain, const Tensor& shift) {
  if (x.is_meta()) return;
  at::parallel_for(0, x.size(0), 16, [&](int64_t begin, int64_t end) {
    gain_kernel(out_data(out) + begin * x.size(1), data(x) + begin * x.size(1), data(gain),
                shift.defined() ? data(shift) : nullptr, end - begin, x.size(1));
  });
}

void add_magnitude_gradient(const Tensor& dy, const Tensor& y, const Tensor& bias, const Tensor& sums) {
  const int64_t cols = dy.size(1);
  at::parallel_for(0, cols, 256, [&](int64_t begin, int64_t end) {
    add_products(out_data(sums) + begin, data(dy) + begin, data(y) + begin,
                 bias.defined() ? data(bias) + begin : nullptr, dy.size(0), cols, end - begin);
  });
}

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

Tensor adapted_norms(const WeightSite& weight, const Adapter& adapter) {
  const int64_t out = out_dim(weight), in = in_dim(weight), rows = panel_rows(weight);
  const auto options = adapter.b->value.options().dtype(at::kFloat);
  const Tensor norms = at::empty({out}, options), panel = at::empty({std::min(rows, out), in}, options);
  const Tensor b = at::empty(adapter.b->value.sizes(), options);
  if (norms.is_meta()) return norms;
  b.copy_(adapter.b->value);
  scale_in_place(b, adapter.scale);
  for (int64_t first = 0; first < out; first += rows) {
    const int64_t n = std::min(rows, out - first);
    const Tensor part = panel.narrow(0, 0, n);
    widen_rows(part, weight, first);
    gemm(part, b.narrow(0, first, n), adapter.a->value, true);
    for (int64_t r = 0; r < n; ++r) out_data(norms)[first + r] = std::sqrt(squared_length(data(part) + r * in, in));
  }
  return norms;
}

}  // namespace tessera::ops::cpu
