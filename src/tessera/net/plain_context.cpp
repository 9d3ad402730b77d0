#include "tessera/net/plain_context.h"

#include <cmath>

#include "tessera/base/check.h"
#include "tessera/ops/reference.h"

namespace tessera::net {

namespace {

/// [T, heads * d] -> [heads, T, d]
Tensor split_heads(const Tensor& x, int64_t heads) { return x.reshape({x.size(0), heads, -1}).transpose(0, 1); }
/// [heads, T, d] -> [T, heads * d]
Tensor join_heads(const Tensor& x) { return x.transpose(0, 1).reshape({x.size(1), -1}); }

/// Attention of one sample: q [heads, Lq, d], k and v [heads, Lk, d].
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor scores = at::matmul(q, k.transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(2)));
  return at::matmul(at::softmax(scores, -1), v);
}

/// Attention within each sample of a packed batch.
Tensor attend_packed(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads, const std::vector<int64_t>& q_at,
                     const std::vector<int64_t>& k_at) {
  std::vector<Tensor> samples;
  for (size_t s = 0; s + 1 < q_at.size(); ++s) {
    const auto queries = [&](const Tensor& x) { return split_heads(x.slice(0, q_at[s], q_at[s + 1]), heads); };
    const auto keys = [&](const Tensor& x) { return split_heads(x.slice(0, k_at[s], k_at[s + 1]), heads); };
    samples.push_back(join_heads(attend(queries(q), keys(k), keys(v))));
  }
  return at::cat(samples);
}

Tensor plain_rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps) * weight;
}

Tensor plain_modulated_norm(const Tensor& x, const Tensor& shift, const Tensor& scale, const Tensor& rows, double eps) {
  const Tensor normal = at::layer_norm(x, {x.size(-1)}, {}, {}, eps);
  return normal * (1 + scale.index_select(0, rows)) + shift.index_select(0, rows);
}

}  // namespace

Tensor PlainContext::optional(std::string_view site, std::string_view suffix) const {
  const auto found = weights_.find(prefix_ + std::string(site).append(suffix));
  return found == weights_.end() ? Tensor() : found->second;
}

Tensor PlainContext::weight(std::string_view site, std::string_view suffix) const {
  const Tensor value = optional(site, suffix);
  if (value.defined()) return value;
  const std::string name = prefix_ + std::string(site).append(suffix);
  std::vector<std::string> known;
  for (const auto& [other, tensor] : weights_) known.push_back(other);
  const auto near = nearest(name, known);
  throw UserError(Exit::input, "net.weight", name + ": no such weight",
                  near.empty() ? "" : "the nearest is " + near[0]);
}

Tensor PlainContext::linear(std::string_view site, const Tensor& x) {
  const Tensor w = weight(site, ".weight").flatten(1), bias = optional(site, ".bias");  // a patch convolution is a GEMM
  const Tensor a = adapters_ ? optional(site, kLoraA) : Tensor();
  if (!a.defined()) return at::linear(x, w, bias);
  const ops::Dropout drop = dropout_at(*adapters_, site, tokens_, x.size(0), false);
  Tensor mask;
  if (drop.active()) ops::drop_rows(mask = at::ones_like(x), drop, 0);
  return ops::reference::lora_linear(x, w, bias, a, weight(site, kLoraB), adapters_->scale, mask,
                                     optional(site, kLoraMagnitude), /*gelu=*/false);
}

Tensor PlainContext::gelu_linear(std::string_view site, const Tensor& x) { return linear(site, at::gelu(x, "tanh")); }

Tensor PlainContext::layer_norm(std::string_view site, const Tensor& x, double eps) {
  return at::layer_norm(x, {x.size(-1)}, weight(site, ".weight"), weight(site, ".bias"), eps);
}

Tensor PlainContext::rms_norm(std::string_view site, const Tensor& x, double eps) {
  return plain_rms_norm(x, weight(site, ".weight"), eps);
}

Tensor PlainContext::rms_norm_rope(std::string_view site, const Tensor& x, int64_t heads, double eps) {
  const Tensor pairs = rms_norm(site, x, eps).reshape({x.size(0), heads, -1, 2});  // [T, heads, d/2, 2]
  const Tensor re = pairs.select(-1, 0), im = pairs.select(-1, 1);                 // [T, heads, d/2]
  const Tensor cos = tokens_.cos.unsqueeze(1), sin = tokens_.sin.unsqueeze(1);     // [T, 1, d/2]
  return at::stack({re * cos - im * sin, re * sin + im * cos}, -1).reshape(x.sizes());
}

Tensor PlainContext::modulated_norm(std::string_view, const Tensor& x, const Tensor& shift, const Tensor& scale,
                                    double eps) {
  return plain_modulated_norm(x, shift, scale, tokens_.rows, eps);
}

Tensor PlainContext::gated_residual(std::string_view, const Tensor& x, const Tensor& y, const Tensor& gate) {
  return x + y * gate.index_select(0, tokens_.rows);
}

Tensor PlainContext::sum(std::string_view, const Tensor& x, const Tensor& y) { return x + y; }

Tensor PlainContext::self_attention(std::string_view, const Tensor& q, const Tensor& k, const Tensor& v,
                                    int64_t heads) {
  return attend_packed(q, k, v, heads, tokens_.offsets, tokens_.offsets);
}

Tensor PlainContext::cross_attention(std::string_view, const Tensor& q, const Tensor& k, const Tensor& v,
                                     int64_t heads) {
  return attend_packed(q, k, v, heads, tokens_.offsets, tokens_.context_offsets);
}

Tensor PlainContext::image_attention(std::string_view, const Tensor& q, const Tensor& k, const Tensor& v,
                                     int64_t heads) {
  return attend_packed(q, k, v, heads, tokens_.offsets, tokens_.image_offsets);
}

Tensor PlainContext::frame_norm(std::string_view, const Tensor& x, const Tensor& shift, const Tensor& scale,
                                double eps) {
  return plain_modulated_norm(x, shift, scale, tokens_.frames.rows, eps);
}

Tensor PlainContext::frame_attention(std::string_view, const Tensor& q, const Tensor& k, const Tensor& v,
                                     int64_t heads) {
  return attend_packed(q, k, v, heads, tokens_.frames.offsets, tokens_.frames.context_offsets);
}

Tensor PlainContext::biased_attention(std::string_view, const Tensor& q, const Tensor& k, const Tensor& v,
                                      int64_t heads, const Tensor& bias) {
  const Tensor scores = at::matmul(split_heads(q, heads), split_heads(k, heads).transpose(1, 2)) + bias;
  return join_heads(at::matmul(at::softmax(scores, -1), split_heads(v, heads)));
}

Tensor PlainContext::param(std::string_view site) { return weight(site, ""); }

Tensor PlainContext::embedding(std::string_view site, const Tensor& ids) {
  return at::embedding(weight(site, ".weight"), ids);
}

Tensor run_plain(const std::vector<std::unique_ptr<Unit>>& units, const WeightMap& weights, const Batch& batch) {
  Flow flow{batch.inputs, {}};
  for (const auto& unit : units) {
    PlainContext ctx(weights, unit->prefix(), batch.tokens);
    Flow out = unit->forward(ctx, flow);
    flow.stream = std::move(out.stream);
    if (!out.cond.empty()) flow.cond = std::move(out.cond);
  }
  return flow.stream.at(0);
}

}  // namespace tessera::net
