#include "tessera/ops/gelu.h"

#include <ATen/Parallel.h>

#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/node.h"

namespace tessera::ops {

namespace {

constexpr float kTwoRoot = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715f;
constexpr int64_t kGeluGrain = 16384, kGeluPiece = 2048;

/// sigmoid(2 u(x)), from which tanh(u) follows, with one exponential and without cancellation.
[[gnu::always_inline]] inline float gate_of(float x) {
  return 1 / (1 + exp_fast(-kTwoRoot * (x + kCubic * x * x * x)));
}

TESSERA_KERNEL void gelu_kernel(float* out, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * gate_of(x[i]);
}

TESSERA_KERNEL void backward_kernel(float* dx, const float* dy, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float gate = gate_of(x[i]);
    dx[i] = dy[i] * (gate + x[i] * gate * (1 - gate) * kTwoRoot * (1 + 3 * kCubic * x[i] * x[i]));
  }
}

}  // namespace

void gelu_forward(float* out, const float* x, int64_t n) {
  at::parallel_for(0, n, kGeluGrain,
                   [&](int64_t begin, int64_t end) { gelu_kernel(out + begin, x + begin, end - begin); });
}
void gelu_backward(float* dx, const float* dy, const float* x, int64_t n) {
  at::parallel_for(0, n, kGeluGrain, [&](int64_t begin, int64_t end) {
    backward_kernel(dx + begin, dy + begin, x + begin, end - begin);
  });
}

void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) {
  const Values up(dy), from(x);
  const Results to(dx);
  at::parallel_for(0, x.numel(), kGeluGrain, [&](int64_t begin, int64_t end) {
    each_piece(begin, end, from.half(), kGeluPiece, [&](int64_t first, int64_t n) {
      float *a = from.half() ? half_scratch(0, n) : nullptr, *b = from.half() ? half_scratch(1, n) : nullptr;
      float* result = to.place(first, a);
      backward_kernel(result, up.read(first, n, a), from.read(first, n, b), n);
      to.store(first, n, result);
    });
  });
}

namespace cpu {

Tensor gelu_tanh(const Tensor& x) {
  Tensor out = at::empty_like(x);
  if (x.is_meta()) return out;
  const Values from(x);
  const Results to(out);
  at::parallel_for(0, x.numel(), kGeluGrain, [&](int64_t begin, int64_t end) {
    each_piece(begin, end, from.half(), kGeluPiece, [&](int64_t first, int64_t n) {
      float* space = from.half() ? half_scratch(0, n) : nullptr;
      float* result = to.place(first, space);
      gelu_kernel(result, from.read(first, n, space), n);
      to.store(first, n, result);
    });
  });
  return out;
}

Tensor gelu_tanh_gradient(const Tensor& dy, const Tensor& x) {
  Tensor dx = at::empty_like(x);
  if (!x.is_meta()) gelu_backward(dx, dy, x);
  return dx;
}

}  // namespace cpu

}  // namespace tessera::ops
