#include "tessera/models/text/clip_text.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/models/common/initial.h"
#include "tessera/models/text/frozen_unit.h"
#include "tessera/models/text/prompts.h"

namespace tessera::models::clip_text {

using at::Tensor;
using net::Context;
using net::Flow;

namespace {

constexpr const char* kPrefix = "text_model.";  // of every tensor in transformers' files

class Embedding final : public net::Unit {
 public:
  explicit Embedding(const Config& c)
      : Unit(frozen_unit("embeddings", "embedding", kPrefix,
                         {{"embeddings.token_embedding.weight", {c.vocab_size, c.dim}},
                          {"embeddings.position_embedding.weight", {c.most_tokens, c.dim}}}),
             kPrefix) {}
  Flow forward(Context& ctx, const Flow& in) const override {  // ids and places, [T] each
    return {{ctx.embedding("embeddings.token_embedding", in.stream[0]) +
             ctx.embedding("embeddings.position_embedding", in.stream[1])},
            {}};
  }
};

class Block final : public net::Unit {
 public:
  Block(const Config& c, int64_t index) : Block(c, "encoder.layers." + std::to_string(index)) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    Tensor x = in.stream[0];  // [T, dim]
    x = x + attention(ctx, ctx.norm("layer_norm1", x, {.eps = c_.eps}));
    const Tensor hidden = ctx.linear("mlp.fc1", ctx.norm("layer_norm2", x, {.eps = c_.eps}));  // [T, ffn]
    return {{x + ctx.linear("mlp.fc2", hidden * at::sigmoid(hidden * 1.702))}, {}};
  }

 private:
  Block(const Config& c, const std::string& name) : Unit(describe(c, name), kPrefix + name + "."), c_(c) {}

  static plan::UnitSpec describe(const Config& c, const std::string& name) {
    std::vector<std::pair<std::string, std::vector<int64_t>>> params;
    const auto add = [&](const std::string& site, std::vector<int64_t> shape) {
      params.push_back({site + ".weight", shape});
      params.push_back({site + ".bias", {shape[0]}});
    };
    add("layer_norm1", {c.dim});
    for (const char* site : {"q_proj", "k_proj", "v_proj", "out_proj"})
      add(std::string("self_attn.") + site, {c.dim, c.dim});
    add("layer_norm2", {c.dim});
    add("mlp.fc1", {c.dim_ffn, c.dim});
    add("mlp.fc2", {c.dim, c.dim_ffn});
    return frozen_unit(name, "block", kPrefix + name + ".", params);
  }

  /// One prompt: [n, dim] each. A token sees itself and those before it.
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v) const {
    const int64_t n = q.size(0), d = c_.dim / c_.num_heads;
    const auto heads = [&](const Tensor& x) { return x.view({n, c_.num_heads, d}).transpose(0, 1); };  // [H, n, d]
    const Tensor place = at::arange(n, q.options().dtype(at::kLong));
    const Tensor later = place.unsqueeze(0) > place.unsqueeze(1);  // [query, key]
    Tensor scores = at::matmul(heads(q) * (1 / std::sqrt(static_cast<double>(d))), heads(k).transpose(1, 2));
    constexpr double kNothing = -1e9;  // of a softmax
    scores = scores + later.to(q.options()).mul_(kNothing);
    return at::matmul(at::softmax(scores, -1), heads(v)).transpose(0, 1).reshape({n, c_.dim});
  }

  Tensor attention(Context& ctx, const Tensor& y) const {
    const Tensor q = ctx.linear("self_attn.q_proj", y), k = ctx.linear("self_attn.k_proj", y),
                 v = ctx.linear("self_attn.v_proj", y);
    const auto& offsets = ctx.tokens().offsets;
    std::vector<Tensor> prompts;
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      const auto cut = [&](const Tensor& x) { return x.slice(0, offsets[s], offsets[s + 1]); };
      prompts.push_back(attend(cut(q), cut(k), cut(v)));
    }
    return ctx.linear("self_attn.out_proj", prompts.size() == 1 ? prompts[0] : at::cat(prompts));
  }

  const Config c_;
};

class FinalNorm final : public net::Unit {
 public:
  explicit FinalNorm(const Config& c)
      : Unit(frozen_unit("final_layer_norm", "norm", kPrefix,
                         {{"final_layer_norm.weight", {c.dim}}, {"final_layer_norm.bias", {c.dim}}}),
             kPrefix),
        eps_(c.eps) {}
  Flow forward(Context& ctx, const Flow& in) const override {
    return {{ctx.norm("final_layer_norm", in.stream[0], {.eps = eps_})}, {}};
  }

 private:
  const double eps_;
};

}  // namespace

const std::vector<std::pair<std::string, Config>>& presets() {
  static const std::vector<std::pair<std::string, Config>> table = {
      {"clip-l", {}},
      {"clip-text-demo", {.vocab_size = 2048, .dim = 32, .dim_ffn = 64, .num_layers = 2, .num_heads = 2, .eos = 1}},
  };
  return table;
}

ClipText::ClipText(const Config& config) : config_(config) {
  units_.push_back(std::make_unique<Embedding>(config));
  for (int64_t i = 0; i < config.num_layers; ++i) units_.push_back(std::make_unique<Block>(config, i));
  units_.push_back(std::make_unique<FinalNorm>(config));
}

net::Batch ClipText::pack(const std::vector<std::vector<int64_t>>& prompts) const {
  net::Batch batch = pack_prompts(prompts, config_.vocab_size, "clip_text.pack");
  std::vector<int64_t> places;
  for (const auto& ids : prompts) {
    const auto count = static_cast<int64_t>(ids.size());
    check_input(
        count <= config_.most_tokens, "clip_text.pack",
        "a prompt has " + std::to_string(count) + " tokens, the encoder takes " + std::to_string(config_.most_tokens),
        "cut it");
    for (int64_t i = 0; i < count; ++i) places.push_back(i);
  }
  batch.inputs.push_back(at::tensor(places, at::kLong));
  return batch;
}

int64_t ClipText::pooled_row(const std::vector<int64_t>& ids) const {
  constexpr int64_t kAnyEnd = 2;
  const auto end = config_.eos == kAnyEnd ? std::ranges::max_element(ids) : std::ranges::find(ids, config_.eos);
  return end == ids.end() ? 0 : end - ids.begin();  // the reference takes the first row where no end is found
}

std::string ClipText::fingerprint() const {
  const Config& c = config_;
  std::string text = "clip-text";
  for (const int64_t size : {c.vocab_size, c.dim, c.dim_ffn, c.num_layers, c.num_heads, c.most_tokens, c.eos})
    text += "-" + std::to_string(size);
  return text;
}

void ClipText::initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) const {
  const std::string_view name = param.name;
  const bool norm = name.find("layer_norm") != name.npos;
  Initial initial = Initial::normal(1 / std::sqrt(static_cast<double>(config_.dim)));
  if (name.ends_with(".bias")) initial = Initial::constant(0);
  if (norm && name.ends_with(".weight")) initial = Initial::constant(1);
  draw_initial(initial, seed, param.name, first, count, out);
}

}  // namespace tessera::models::clip_text
