// Sums on CPUs, with or without gate, and losses.
#include <ATen/Parallel.h>

#include "tessera/ops/activations.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/kernel_list.h"
#include "tessera/ops/node.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops::cpu {

namespace {

constexpr int64_t kSumTokenGrain = 64, kSumColumnGrain = 64;

TESSERA_KERNEL void gated_forward(const float* x, const float* y, const float* gate, int64_t gate_stride,
                                  const int32_t* rows, int64_t begin, int64_t end, int64_t n, float* to) {
  for (int64_t t = begin; t < end; ++t) {
    const float* __restrict a = x + t * n, * __restrict b = y + t * n, * __restrict g = gate + rows[t] * gate_stride;
    float* __restrict out = to + t * n;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i] * g[i];
  }
}

TESSERA_KERNEL void gated_input(const float* up, const float* gate, int64_t gate_stride, const int32_t* rows,
                                int64_t begin, int64_t end, int64_t n, float* dy) {
  for (int64_t t = begin; t < end; ++t) {
    const float* __restrict u = up + t * n, * __restrict g = gate + rows[t] * gate_stride;
    float* __restrict out = dy + t * n;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = u[i] * g[i];
  }
}

/// Columns [begin, end) of the gate's gradient, over tokens in order.
TESSERA_KERNEL void gated_table(const float* up, const float* y, const int32_t* rows, int64_t tokens, int64_t n,
                                int64_t begin, int64_t end, float* dgate) {
  for (int64_t t = 0; t < tokens; ++t) {
    const float* __restrict u = up + t * n, * __restrict v = y + t * n;
    float* __restrict out = dgate + rows[t] * n;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) out[i] += u[i] * v[i];
  }
}

TESSERA_KERNEL void sum_kernel(const float* x, const float* y, int64_t n, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = x[i] + y[i];
}

}  // namespace

Tensor sum(const Tensor& x, const Tensor& y) {
  const Tensor out = at::empty_like(x);
  if (x.is_meta()) return out;
  const Values a(x), b(y);
  const Results to(out);
  const int64_t width = x.size(1);
  at::parallel_for(0, x.size(0), kSumTokenGrain, [&](int64_t begin, int64_t end) {
    each_piece(begin, end, a.half() || b.half(), kHalfRows, [&](int64_t first, int64_t n) {
      const int64_t at = first * width, count = n * width;
      const auto space = [&](bool half, int which) { return half ? half_scratch(which, count) : nullptr; };
      float* sums = to.place(at, space(to.half(), 2));
      sum_kernel(a.read(at, count, space(a.half(), 0)), b.read(at, count, space(b.half(), 1)), count, sums);
      to.store(at, count, sums);
    });
  });
  return out;
}

Tensor sum_of_halves(const Tensor& parts, const Tensor& bias) {
  const int64_t n = parts.size(0), rows = parts.size(1), cols = parts.size(2);
  const Tensor total = at::empty({rows, cols}, parts.options());
  if (parts.is_meta()) return total;
  const Tensor offset = bias.defined() ? as_floats(bias) : bias;
  const Values from(parts);
  const Results to(total);
  at::parallel_for(0, rows, kSumTokenGrain, [&](int64_t begin, int64_t end) {
    float *sum = half_scratch(0, cols), *space = half_scratch(1, cols);
    for (int64_t r = begin; r < end; ++r) {
      from.read(r * cols, cols, sum);
      for (int64_t i = 1; i < n; ++i) add(sum, from.read((i * rows + r) * cols, cols, space), cols);
      if (offset.defined()) add(sum, data(offset), cols);
      to.store(r * cols, cols, sum);
    }
  });
  return total;
}

Tensor gated_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const RowIndex& rows, Tensor* /*rounded*/) {
  Tensor out = at::empty_like(x);
  if (x.is_meta()) return out;
  const Values branch(y);
  const int64_t width = x.size(1);
  at::parallel_for(0, x.size(0), kSumTokenGrain, [&](int64_t begin, int64_t end) {
    each_piece(begin, end, branch.half(), kHalfRows, [&](int64_t first, int64_t n) {
      const int64_t at = first * width;
      float* space = branch.half() ? half_scratch(0, n * width) : nullptr;
      gated_forward(data(x) + at, branch.read(at, n * width, space), data(gate), gate.stride(0),
                    host_pointer<const int32_t>(rows.of_token) + first, 0, n, width, out_data(out) + at);
    });
  });
  return out;
}

namespace {

void gate_gradient(const Tensor& up, const Tensor& y, const RowIndex& rows, const Tensor& dgate) {
  if (y.is_meta()) return;
  const int32_t* index = host_pointer<const int32_t>(rows.of_token);
  const Values branch(y);
  const int64_t width = y.size(1);
  at::parallel_for(0, width, kSumColumnGrain, [&](int64_t begin, int64_t end) {
    each_piece(0, y.size(0), branch.half(), kHalfRows, [&](int64_t first, int64_t n) {
      float* space = branch.half() ? half_scratch(0, n * width) : nullptr;
      gated_table(data(up) + first * width, branch.read_columns(first, n, width, begin, end, space), index + first, n,
                  width, begin, end, out_data(dgate));
    });
  });
}

void branch_gradient(const Tensor& up, const Tensor& gate, const RowIndex& rows, const Tensor& dy) {
  if (dy.is_meta()) return;
  const int32_t* index = host_pointer<const int32_t>(rows.of_token);
  const Results to(dy);
  const int64_t width = up.size(1);
  at::parallel_for(0, up.size(0), kSumTokenGrain, [&](int64_t begin, int64_t end) {
    each_piece(begin, end, to.half(), kHalfRows, [&](int64_t first, int64_t n) {
      const int64_t at = first * width;
      float* out = to.place(at, to.half() ? half_scratch(0, n * width) : nullptr);
      gated_input(data(up) + at, data(gate), gate.stride(0), index + first, 0, n, width, out);
      to.store(at, n * width, out);
    });
  });
}

}  // namespace

Tensor sum_backward(const Tensor& up, at::ScalarType type, Tensor* /*columns*/) { return up.to(type); }

void gated_residual_backward(const Tensor& up, const Tensor& y, const Tensor& gate, const RowIndex& rows,
                             const Tensor& dy, const Tensor& dgate, bool add, Tensor* /*columns*/) {
  begin(dgate, add);
  if (dgate.defined()) gate_gradient(up, y, rows, dgate);
  if (dy.defined()) branch_gradient(up, gate, rows, dy);
}

namespace {

/// [1], beside the memory of tensors that plans count.
Tensor number(double value) {
  return at::from_blob(
      new double(value), {1}, [](void* data) { delete static_cast<double*>(data); }, at::kDouble);
}

}  // namespace

void add_error(SampleError& error, const Tensor& prediction, const Tensor& target, const Tensor& weights,
               const ErrorForm& form, double part, double scale, const Tensor& gradient) {
  if (prediction.is_meta()) return;
  const int64_t count = prediction.numel();
  const auto *p = host_pointer<const float>(prediction), *t = host_pointer<const float>(target),
             *w = weights.defined() ? host_pointer<const float>(weights) : nullptr;
  auto* g = host_pointer<float>(gradient);
  const auto factor = static_cast<float>(2 * scale / static_cast<double>(count));
  double sum = 0;
  const bool squares = form.is_mse();
  for (int64_t i = 0; i < count; ++i) {
    const float difference = p[i] - t[i], weight = w ? w[i] : 1;
    if (squares) {
      sum += static_cast<double>(weight) * difference * difference;
      g[i] = weight * difference * factor;
    } else {
      const ErrorValue one = error_of(form, difference);
      sum += weight * one.error;
      g[i] = static_cast<float>(weight * one.slope * scale / static_cast<double>(count));
    }
  }
  if (!error.number.defined()) error = {number(0), 1};
  *host_pointer<double>(error.number) += part * (sum / static_cast<double>(count));
}

Tensor dot(const Tensor& a, const Tensor& b) {
  const auto *x = host_pointer<const float>(a), *y = host_pointer<const float>(b);
  double sum = 0;
  for (int64_t i = 0; i < a.numel(); ++i) sum += static_cast<double>(x[i]) * y[i];
  return number(sum);
}

void embedding_gradient(const Tensor& grad, const Tensor& ids, const Tensor& dy) {
  if (grad.is_meta()) return;
  const int64_t d = dy.size(1);
  for (int64_t t = 0; t < ids.size(0); ++t)
    add(out_data(grad) + host_pointer<const int64_t>(ids)[t] * d, data(dy) + t * d, d);
}

}  // namespace tessera::ops::cpu

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

// LibTorch's own: there is no order of sums to keep.
Tensor silu_glu(const Tensor& x, const Tensor& gate) { return aten::silu_glu(x, gate); }
std::pair<Tensor, Tensor> silu_glu_gradients(const Tensor& dy, const Tensor& x, const Tensor& gate) {
  return aten::silu_glu_gradients(dy, x, gate);
}

}  // namespace cpu

}  // namespace tessera::ops
