#include "tessera/models/encoders/gemma2.h"

#include <cmath>

#include "tessera/base/check.h"
#include "tessera/models/common/initial.h"
#include "tessera/models/common/names.h"
#include "tessera/models/encoders/prompts.h"
#include "tessera/net/declare.h"

namespace tessera::models::gemma2 {

using at::Tensor;
using net::Context;
using net::Flow;

namespace {

/// RMSNorm that multiplies by 1 + weight.
Tensor norm(Context& ctx, const std::string& site, const Tensor& x, double eps) {
  const Tensor factor = at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps);
  return x * factor * (1 + ctx.param(site + ".weight", {x.size(-1)}));
}

class Embedding final : public net::Unit {
 public:
  explicit Embedding(const Config& c)
      : Unit({.name = "embed_tokens", .kind = "embedding"}, ""), vocabulary_(c.vocab_size), dim_(c.dim) {}
  Flow forward(Context& ctx, const Flow& in) const override {
    const auto factor = static_cast<float>(std::sqrt(static_cast<double>(dim_)));
    return {{ctx.embedding("embed_tokens", in.stream[0], {vocabulary_, dim_}) * factor}, {}};
  }

 private:
  const int64_t vocabulary_, dim_;
};

class Block final : public net::Unit {
 public:
  Block(const Config& c, int64_t index)
      : Unit({.name = "layers." + std::to_string(index), .kind = "block"}),
        c_(c),
        window_(index % 2 == 0 ? c.sliding_window : 0) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    Tensor x = in.stream[0];  // [T, dim]
    const Tensor mixed = attention(ctx, norm(ctx, "input_layernorm", x, c_.eps));
    x = x + norm(ctx, "post_attention_layernorm", mixed, c_.eps);
    const Tensor y = norm(ctx, "pre_feedforward_layernorm", x, c_.eps);
    const Tensor gate = at::gelu(linear(ctx, "mlp.gate_proj", y, c_.dim_ffn), "tanh");  // [T, ffn]
    const Tensor out = linear(ctx, "mlp.down_proj", gate * linear(ctx, "mlp.up_proj", y, c_.dim_ffn), c_.dim);
    return {{x + norm(ctx, "post_feedforward_layernorm", out, c_.eps)}, {}};
  }

 private:
  static Tensor linear(Context& ctx, const char* site, const Tensor& x, int64_t out) {
    return ctx.linear(site, x, {.out = out, .bias = false});
  }

  Tensor attention(Context& ctx, const Tensor& y) const {
    const auto turned = [&](const char* site, int64_t heads) {
      return ctx.rope(site, linear(ctx, site, y, heads * c_.head_dim), heads, net::RopeStyle::half_split);
    };
    const Tensor q = turned("self_attn.q_proj", c_.num_heads), k = turned("self_attn.k_proj", c_.num_kv_heads);
    const Tensor v = linear(ctx, "self_attn.v_proj", y, c_.num_kv_heads * c_.head_dim);
    const CausalForm form{.kv_heads = c_.num_kv_heads,
                          .head_dim = c_.head_dim,
                          .divisor = std::sqrt(c_.query_pre_attn_scalar),
                          .cap = c_.score_cap,
                          .window = window_};
    return linear(ctx, "self_attn.o_proj", causal_attention(ctx.tokens().offsets, q, k, v, form), c_.dim);
  }

  const Config c_;
  const int64_t window_;  // 0: all earlier keys
};

class FinalNorm final : public net::Unit {
 public:
  explicit FinalNorm(const Config& c) : Unit({.name = "norm", .kind = "norm"}, ""), eps_(c.eps) {}
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
  net::declare_frozen(units_, {{net::id_without_memory()}, {}}, 1);
}

net::Batch Gemma2::pack(const std::vector<std::vector<int64_t>>& prompts) const {
  net::Batch batch = pack_prompts(prompts, config_.vocab_size, "gemma2.pack");
  add_rotations(batch, config_.head_dim, config_.rope_theta);
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

namespace {

using Json = nlohmann::ordered_json;

/// The head dimension is in no shape: it comes from the given config or from the preset of these sizes.
Json config_json(const ConfigSource& source) {
  const Sizes& size = source.size;
  const auto* preset = preset_of(presets(), size.shapes);
  const Config known = preset ? preset->second : Config{};
  const auto given = [&](const char* key, auto absent) { return source.given.get(key, key, absent); };
  const auto head = given("head_dim", preset ? known.head_dim : int64_t{0});
  if (head <= 0)
    throw UserError(
        Exit::input, "models.config",
        source.file + ": the shapes of the weights do not tell head_dim, and no known model has these sizes",
        "put the config.json that came with the weights beside them");
  Json out = source.given.base("query_pre_attn_scalar");
  out.update(Json{{"_class_name", "Gemma2Model"},
                  {"architectures", {"Gemma2Model"}},
                  {"model_type", "gemma2"},
                  {"vocab_size", size("embed_tokens.weight", 0)},
                  {"hidden_size", size("embed_tokens.weight", 1)},
                  {"intermediate_size", size("layers.0.mlp.up_proj.weight", 0)},
                  {"num_hidden_layers", count_blocks(size.shapes)},
                  {"num_attention_heads", size("layers.0.self_attn.q_proj.weight", 0) / head},
                  {"num_key_value_heads", size("layers.0.self_attn.k_proj.weight", 0) / head},
                  {"head_dim", head},
                  {"query_pre_attn_scalar", given("query_pre_attn_scalar", known.query_pre_attn_scalar)},
                  {"sliding_window", given("sliding_window", known.sliding_window)},
                  {"attn_logit_softcapping", given("attn_logit_softcapping", known.score_cap)},
                  {"rope_theta", given("rope_theta", known.rope_theta)},
                  {"rms_norm_eps", given("rms_norm_eps", known.eps)},
                  {"hidden_activation", "gelu_pytorch_tanh"},
                  {"attention_bias", false}});
  return out;
}

}  // namespace

WeightForm weight_form() {
  return {.kind = ModelKind::text_encoder,
          .title = "Gemma 2",
          .model = "gemma-2",
          .variant = {},
          .marks = {"layers.0.pre_feedforward_layernorm.weight", "layers.0.self_attn.q_proj.weight", "norm.weight"},
          .names = {.diffusers = {}, .ours_are_diffusers = true},
          .refine =
              [](const Shapes& official, Identity& identity) {
                if (const auto* preset = preset_of(presets(), official)) identity.model = preset->first;
              },
          .config = config_json,
          .config_marks = {"query_pre_attn_scalar"}};
}

namespace {

NamedTensors case_results(const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& hidden,
                          const std::function<Tensor(const std::string& name)>&) {
  return {{"out.last_hidden_state", masked_rows(encoder, file, hidden)}};
}

}  // namespace

TextEncoderMake text_encoder() {
  return {.presets = [] { return names_of(presets()); },
          .from_preset = [](const std::string& preset) -> std::unique_ptr<net::TextEncoder> {
            return std::make_unique<Gemma2>(find_named(presets(), "text encoder", preset));
          },
          .from_json = [](const std::string& json, const std::string& file) -> std::unique_ptr<net::TextEncoder> {
            return std::make_unique<Gemma2>(parse_config(json, file));
          },
          .weights = weight_form(),
          .verify = {.kind = "gemma2",
                     .pack = pack_masked,
                     .results = case_results,
                     .prompts = "sana_prompt",
                     .state = masked_rows},
          .in_bf16 = {"gemma-2-2b"}};
}

}  // namespace tessera::models::gemma2
