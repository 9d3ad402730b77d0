#include "tessera/models/text/gemma2.h"

#include <cmath>

#include "tessera/base/check.h"
#include "tessera/models/common/initial.h"
#include "tessera/models/text/frozen_unit.h"
#include "tessera/models/text/prompts.h"

namespace tessera::models::gemma2 {

using at::Tensor;
using net::Context;
using net::Flow;

namespace {

/// RMSNorm that multiplies by 1 + weight.
Tensor norm(Context& ctx, const std::string& site, const Tensor& x, double eps) {
  const Tensor factor = at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps);
  return x * factor * (1 + ctx.param(site + ".weight"));
}

class Embedding final : public net::Unit {
 public:
  explicit Embedding(const Config& c)
      : Unit(frozen_unit("embed_tokens", "embedding", "", {{"embed_tokens.weight", {c.vocab_size, c.dim}}}), ""),
        factor_(static_cast<float>(std::sqrt(static_cast<double>(c.dim)))) {}
  Flow forward(Context& ctx, const Flow& in) const override {
    return {{ctx.embedding("embed_tokens", in.stream[0]) * factor_}, {}};
  }

 private:
  const float factor_;
};

class Block final : public net::Unit {
 public:
  Block(const Config& c, int64_t index)
      : Unit(describe(c, index)), c_(c), window_(index % 2 == 0 ? c.sliding_window : 0) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    Tensor x = in.stream[0];  // [T, dim]
    const Tensor mixed = attention(ctx, norm(ctx, "input_layernorm", x, c_.eps));
    x = x + norm(ctx, "post_attention_layernorm", mixed, c_.eps);
    const Tensor y = norm(ctx, "pre_feedforward_layernorm", x, c_.eps);
    const Tensor gate = at::gelu(ctx.linear("mlp.gate_proj", y), "tanh");  // [T, ffn]
    const Tensor out = ctx.linear("mlp.down_proj", gate * ctx.linear("mlp.up_proj", y));
    return {{x + norm(ctx, "post_feedforward_layernorm", out, c_.eps)}, {}};
  }

 private:
  static plan::UnitSpec describe(const Config& c, int64_t index) {
    const std::string name = "layers." + std::to_string(index);
    const int64_t inner = c.num_heads * c.head_dim, shared = c.num_kv_heads * c.head_dim;
    return frozen_unit(name, "block", name + ".",
                       {{"input_layernorm.weight", {c.dim}},
                        {"self_attn.q_proj.weight", {inner, c.dim}},
                        {"self_attn.k_proj.weight", {shared, c.dim}},
                        {"self_attn.v_proj.weight", {shared, c.dim}},
                        {"self_attn.o_proj.weight", {c.dim, inner}},
                        {"post_attention_layernorm.weight", {c.dim}},
                        {"pre_feedforward_layernorm.weight", {c.dim}},
                        {"mlp.gate_proj.weight", {c.dim_ffn, c.dim}},
                        {"mlp.up_proj.weight", {c.dim_ffn, c.dim}},
                        {"mlp.down_proj.weight", {c.dim, c.dim_ffn}},
                        {"post_feedforward_layernorm.weight", {c.dim}}});
  }

  /// [n, n], added to scores, which are capped: nothing is left of the keys that a query does not see.
  Tensor mask(int64_t n, const Tensor& like) const {
    constexpr double kNothing = -1e9;
    const Tensor place = at::arange(n, like.options().dtype(at::kLong));
    const Tensor ahead = place.unsqueeze(0) - place.unsqueeze(1);  // [query, key]
    const Tensor later = ahead > 0, hidden = window_ > 0 ? later.bitwise_or(ahead <= -window_) : later;
    return hidden.to(like.options()).mul_(kNothing);
  }

  /// One prompt: q [n, heads * d], k and v [n, kv_heads * d], which groups of heads share.
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v) const {
    const int64_t n = q.size(0), shared = c_.num_kv_heads, d = c_.head_dim;
    const auto keys = [&](const Tensor& x) { return x.view({n, shared, d}).transpose(0, 1); };  // [shared, n, d]
    const Tensor queries = q.view({n, shared, -1, d}).permute({1, 2, 0, 3});                    // [shared, group, n, d]
    const int64_t group = queries.size(1);
    Tensor scores = at::matmul(queries.reshape({shared, group * n, d}), keys(k).transpose(1, 2));
    scores = at::tanh(scores * (1 / (std::sqrt(c_.query_pre_attn_scalar) * c_.score_cap))) * c_.score_cap;
    scores = scores.view({shared, group, n, n}) + mask(n, q);
    const Tensor mixed = at::matmul(at::softmax(scores, -1).view({shared, group * n, n}), keys(v));
    return mixed.view({shared, group, n, d}).permute({2, 0, 1, 3}).reshape({n, -1});
  }

  Tensor attention(Context& ctx, const Tensor& y) const {
    const auto turned = [&](const char* site, int64_t heads) {
      return ctx.rope(site, ctx.linear(site, y), heads, net::RopeStyle::half_split);
    };
    const Tensor q = turned("self_attn.q_proj", c_.num_heads), k = turned("self_attn.k_proj", c_.num_kv_heads);
    const Tensor v = ctx.linear("self_attn.v_proj", y);
    const auto& offsets = ctx.tokens().offsets;
    std::vector<Tensor> prompts;
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      const auto cut = [&](const Tensor& x) { return x.slice(0, offsets[s], offsets[s + 1]); };
      prompts.push_back(attend(cut(q), cut(k), cut(v)));
    }
    return ctx.linear("self_attn.o_proj", prompts.size() == 1 ? prompts[0] : at::cat(prompts));
  }

  const Config c_;
  const int64_t window_;  // 0: all earlier keys
};

class FinalNorm final : public net::Unit {
 public:
  explicit FinalNorm(const Config& c)
      : Unit(frozen_unit("norm", "norm", "", {{"norm.weight", {c.dim}}}), ""), eps_(c.eps) {}
  Flow forward(Context& ctx, const Flow& in) const override { return {{norm(ctx, "norm", in.stream[0], eps_)}, {}}; }

 private:
  const double eps_;
};

}  // namespace

const std::vector<std::pair<std::string, Config>>& presets() {
  static const std::vector<std::pair<std::string, Config>> table = {
      {"gemma-2-2b", {}},
      {"gemma-2-demo",
       {.vocab_size = 2048,
        .dim = 64,
        .dim_ffn = 128,
        .num_layers = 3,
        .num_heads = 4,
        .num_kv_heads = 2,
        .head_dim = 16,
        .sliding_window = 16,
        .query_pre_attn_scalar = 16}},
  };
  return table;
}

Gemma2::Gemma2(const Config& config) : config_(config) {
  units_.push_back(std::make_unique<Embedding>(config));
  for (int64_t i = 0; i < config.num_layers; ++i) units_.push_back(std::make_unique<Block>(config, i));
  units_.push_back(std::make_unique<FinalNorm>(config));
}

net::Batch Gemma2::pack(const std::vector<std::vector<int64_t>>& prompts) const {
  net::Batch batch = pack_prompts(prompts, config_.vocab_size, "gemma2.pack");
  std::vector<double> places;
  for (const auto& ids : prompts)
    for (size_t i = 0; i < ids.size(); ++i) places.push_back(static_cast<double>(i));
  const int64_t half = config_.head_dim / 2;
  const Tensor exponents = at::arange(half, at::kDouble) / static_cast<double>(half);
  // fp32 as in the reference, which multiplies fp32 places and frequencies
  const Tensor frequencies = at::pow(config_.rope_theta, exponents).reciprocal().to(at::kFloat);
  const Tensor angles = at::outer(at::tensor(places, at::kDouble).to(at::kFloat), frequencies);
  batch.tokens.cos = angles.cos();
  batch.tokens.sin = angles.sin();
  return batch;
}

std::string Gemma2::fingerprint() const {
  const Config& c = config_;
  std::string text = "gemma2";
  for (const int64_t size :
       {c.vocab_size, c.dim, c.dim_ffn, c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim, c.sliding_window})
    text += "-" + std::to_string(size);
  return text;
}

void Gemma2::initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) const {
  const bool is_norm = param.shape.size() == 1;  // 1 + 0
  // the embeddings are multiplied by the root of their width
  const int64_t in = param.shape.back();
  draw_initial(is_norm ? Initial::constant(0) : Initial::normal(1 / std::sqrt(static_cast<double>(in))), seed,
               param.name, first, count, out);
}

}  // namespace tessera::models::gemma2
