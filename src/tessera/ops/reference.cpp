#include "tessera/ops/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tessera::ops::reference {

namespace {

Tensor split_heads(const Tensor& x, int64_t heads) {
  return x.view({x.size(0), heads, -1}).transpose(0, 1);
}  // [H, L, d]
Tensor join_heads(const Tensor& x) { return x.transpose(0, 1).reshape({x.size(1), -1}); }  // [L, H d]

}  // namespace

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b) { return at::linear(x, w.flatten(1), b); }
Tensor gelu_linear(const Tensor& x, const Tensor& w, const Tensor& b) { return linear(gelu_tanh(x), w, b); }
Tensor lora_linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& a, const Tensor& b, double s,
                   const Tensor& mask, const Tensor& magnitude, bool gelu, const Tensor& ranks) {
  const Tensor z = gelu ? gelu_tanh(x) : x;
  if (!magnitude.defined()) {
    const Tensor h = at::linear(mask.defined() ? mask * z : z, a);
    return linear(z, w, bias) + s * at::linear(ranks.defined() ? ranks * h : h, b);
  }
  const Tensor adapted = w + s * at::matmul(b, a);
  const Tensor gain = magnitude / adapted.detach().norm(2, 1);  // [out]
  const Tensor y = at::linear(z, adapted) * gain;
  return bias.defined() ? y + bias : y;
}
Tensor weight_change(const Tensor& p, const Tensor& q, bool kronecker) {
  if (!kronecker) return p * q;
  const Tensor blocks = p.unsqueeze(1).unsqueeze(3) * q.unsqueeze(0).unsqueeze(2);  // [l, k, m, n]
  return blocks.reshape({p.size(0) * q.size(0), p.size(1) * q.size(1)});
}
Tensor layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, double eps) {
  return at::layer_norm(x, {x.size(1)}, w, b, eps);
}
Tensor rms_norm(const Tensor& x, const Tensor& w, double eps) {
  return x * at::rsqrt(x.square().mean(1, true) + eps) * w;
}

Tensor rms_norm_rope(const Tensor& x, const Tensor& w, const Tensor& cos, const Tensor& sin, int64_t heads,
                     double eps) {
  const Tensor pairs = rms_norm(x, w, eps).view({x.size(0), heads, -1, 2});
  const Tensor re = pairs.select(3, 0), im = pairs.select(3, 1), c = cos.unsqueeze(1), s = sin.unsqueeze(1);
  return at::stack({re * c - im * s, re * s + im * c}, 3).view_as(x);
}

Tensor modulated_norm(const Tensor& x, const Tensor& shift, const Tensor& scale, const Tensor& rows, double eps) {
  return layer_norm(x, {}, {}, eps) * (1 + scale.index_select(0, rows)) + shift.index_select(0, rows);
}

Tensor gated_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const Tensor& rows) {
  return x + y * gate.index_select(0, rows);
}

Tensor gelu_tanh(const Tensor& x) { return 0.5 * x * (1 + at::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x.pow(3)))); }

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                 const std::vector<int64_t>& q_offsets, const std::vector<int64_t>& k_offsets) {
  std::vector<Tensor> samples;
  for (size_t s = 0; s + 1 < q_offsets.size(); ++s) {
    const Tensor qs = split_heads(q.slice(0, q_offsets[s], q_offsets[s + 1]), heads),
                 ks = split_heads(k.slice(0, k_offsets[s], k_offsets[s + 1]), heads);
    const Tensor scores = at::matmul(qs, ks.transpose(1, 2)) / std::sqrt(static_cast<double>(qs.size(2)));
    samples.push_back(
        join_heads(at::matmul(at::softmax(scores, 2), split_heads(v.slice(0, k_offsets[s], k_offsets[s + 1]), heads))));
  }
  return at::cat(samples);
}

Tensor attention_bias(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads, const Tensor& bias) {
  const Tensor scores = at::matmul(split_heads(q, heads), split_heads(k, heads).transpose(1, 2)) + bias;
  return join_heads(at::matmul(at::softmax(scores, 2), split_heads(v, heads)));
}

uint8_t nearest_code(const std::array<float, 256>& map, float x) {
  int code = 0;
  while (code < 255 && map[code + 1] <= x) ++code;
  if (code < 255 && x - map[code] >= (map[code + 1] - map[code]) * 0.5f) ++code;
  return static_cast<uint8_t>(code);
}

float fp8_value(uint8_t code, DType format) {
  const int mantissa_bits = format == DType::f8_e4m3 ? 3 : 2, bias = format == DType::f8_e4m3 ? 7 : 15;
  const int magnitude = code & 0x7f, exponent = magnitude >> mantissa_bits;
  const int mantissa = magnitude & ((1 << mantissa_bits) - 1);
  float value = std::ldexp(static_cast<float>(mantissa + (exponent ? 1 << mantissa_bits : 0)),
                           std::max(exponent, 1) - bias - mantissa_bits);
  if (format == DType::f8_e4m3 && magnitude == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
  if (format == DType::f8_e5m2 && magnitude == 0x7c) value = std::numeric_limits<float>::infinity();
  if (format == DType::f8_e5m2 && magnitude > 0x7c) value = std::numeric_limits<float>::quiet_NaN();
  return code & 0x80 ? -value : value;
}

uint8_t fp8_code(float x, DType format) {
  const int top = format == DType::f8_e4m3 ? 0x7e : 0x7b;  // the largest value; the next code stands for "beyond"
  const int sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return static_cast<uint8_t>(0x7f | sign);
  const double magnitude = std::abs(static_cast<double>(x)), largest = fp8_value(static_cast<uint8_t>(top), format);
  int nearest = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int code = 0; code <= top + 1; ++code) {
    // "Beyond" is one step of the largest value's exponent above it.
    const double step = largest - fp8_value(static_cast<uint8_t>(top - 1), format);
    const double value = code <= top ? fp8_value(static_cast<uint8_t>(code), format) : largest + step;
    const double distance = std::abs(magnitude - value);
    if (distance < least || (distance == least && code % 2 == 0)) nearest = code, least = distance;
  }
  // Far above, the differences round to the same number.
  if (magnitude > 2 * largest) nearest = top + 1;
  return static_cast<uint8_t>(nearest | sign);
}

std::array<uint16_t, 2> bf16_neighbours(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const auto inner = static_cast<uint16_t>(bits >> 16);
  return {inner, static_cast<uint16_t>(inner + (bits & 0xffff ? 1 : 0))};
}

}  // namespace tessera::ops::reference
