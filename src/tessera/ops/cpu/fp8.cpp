// Products in 8 bits on CPUs ([Note: products in 8 bits] in kernels.h): the codes and scales of a GPU, and fp32 sums of their
// exact products. No processor that we know multiplies 8-bit floats, so codes are widened to bf16, which holds each of them,
// and it is slower than bf16 by the quantising.
#include <ATen/Parallel.h>

#include "tessera/ops/eight_bit.h"
#include "tessera/ops/frozen.h"
#include "tessera/ops/fused.h"
#include "tessera/ops/gemm.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernel_list.h"
#include "tessera/ops/node.h"

namespace tessera::ops::cpu {

namespace {

constexpr int64_t kCodeRows = 256;  // of a result that are made at once

Form form_of(const Tensor& t) {
  return t.scalar_type() == at::kFloat ? Form::fp32 : t.scalar_type() == at::kBFloat16 ? Form::bf16 : Form::fp16;
}

/// The values of some lines of codes, without their scales.
void read_codes(const Tensor& to, const Fp8Lines& lines, int64_t first) {
  const int64_t length = lines.codes.size(1);
  const DType format = lines.codes.scalar_type() == at::kFloat8_e5m2 ? DType::f8_e5m2 : DType::f8_e4m3;
  const auto* codes = static_cast<const uint8_t*>(host_pointer<const void>(lines.codes)) + first * length;
  auto* values = static_cast<uint16_t*>(host_pointer<void>(to));
  at::parallel_for(0, to.size(0), 16, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(length));
    for (int64_t r = begin; r < end; ++r) {
      from_fp8(row.data(), codes + r * length, length, format);
      narrow(values + r * length, row.data(), at::kBFloat16, length);
    }
  });
}

/// Calls take(row, n values) for each row of a b^T, in order.
template <class Take>
void each_product_row(const Fp8Lines& a, const Fp8Lines& b, const Take& take) {
  const int64_t m = a.codes.size(0), n = b.codes.size(0), k = a.codes.size(1), most = std::min(kCodeRows, m);
  const auto options = a.scales.options();
  const Tensor right = at::empty({n, k}, options.dtype(at::kBFloat16)),
               left = at::empty({most, k}, options.dtype(at::kBFloat16)), sums = at::empty({most, n}, options);
  if (a.codes.is_meta()) return;
  read_codes(right, b, 0);
  const float *rows = data(a.scales), *columns = data(b.scales);
  for (int64_t first = 0; first < m; first += kCodeRows) {
    const int64_t count = std::min(kCodeRows, m - first);
    const Tensor sum = sums.narrow(0, 0, count);
    read_codes(left.narrow(0, 0, count), a, first);
    gemm(sum, left.narrow(0, 0, count), right.t());
    at::parallel_for(0, count, 8, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* values = out_data(sum) + r * n;
        for (int64_t c = 0; c < n; ++c) values[c] = values[c] * rows[first + r] * columns[c];
        take(first + r, values);
      }
    });
  }
}

}  // namespace

Fp8Lines fp8_lines(const Tensor& x, at::ScalarType format, bool turned, bool gelu) {
  const Tensor z = gelu ? cpu::gelu_tanh(x) : x;
  const int64_t lines = x.size(turned ? 1 : 0), stride = round_up(x.size(turned ? 0 : 1), kFp8Pad);
  const Fp8Lines made = {at::empty({lines, stride}, x.options().dtype(format)),
                         at::empty({lines}, x.options().dtype(at::kFloat))};
  if (!x.is_meta())
    quantise_lines({x.size(0),
                    x.size(1),
                    {host_pointer<const void>(z), form_of(z)},
                    turned,
                    format == at::kFloat8_e5m2,
                    static_cast<uint8_t*>(host_pointer<void>(made.codes)),
                    out_data(made.scales),
                    stride,
                    fp8_counts(format)});
  return made;
}

Tensor fp8_product(const Fp8Lines& a, const Fp8Lines& b, const Tensor& bias, at::ScalarType type) {
  const int64_t n = b.codes.size(0);
  const Tensor y = at::empty({a.codes.size(0), n}, a.scales.options().dtype(type)),
               offset = bias.defined() ? as_floats(bias) : Tensor();
  const Results results(y);
  each_product_row(a, b, [&](int64_t row, float* values) {
    for (int64_t c = 0; offset.defined() && c < n; ++c) values[c] += data(offset)[c];
    float* place = results.place(row * n, values);
    if (place != values) std::copy_n(values, n, place);
    results.store(row * n, n, values);
  });
  return y;
}

void fp8_product_into(const Tensor& out, const Fp8Lines& a, const Fp8Lines& b, bool add) {
  each_product_row(a, b, [&](int64_t row, const float* values) {
    float* to = out_data(out) + row * out.stride(0);
    for (int64_t c = 0; c < b.codes.size(0); ++c) to[c] = add ? to[c] + values[c] : values[c];
  });
}

Tensor frozen_matrix(const WeightSite& weight, at::ScalarType type) {
  const int64_t out = out_dim(weight), in = in_dim(weight), rows = panel_rows(weight);
  if (weight.value.scalar_type() == type) return weight.value.view({out, in});
  const auto options = weight.value.options();
  const Tensor all = at::empty({out, in}, options.dtype(type)),
               panel = at::empty({std::min(rows, out), in}, options.dtype(at::kFloat));
  if (all.is_meta()) return all;
  for (int64_t first = 0; first < out; first += rows) {
    const Tensor part = panel.narrow(0, 0, std::min(rows, out - first));
    widen_rows(part, weight, first);
    all.narrow(0, first, part.size(0)).copy_(part);
  }
  return all;
}

}  // namespace tessera::ops::cpu
