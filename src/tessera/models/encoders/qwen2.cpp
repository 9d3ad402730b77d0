#include "tessera/models/encoders/qwen2.h"

#include <cmath>

#include "tessera/models/common/initial.h"
#include "tessera/models/common/names.h"
#include "tessera/models/encoders/prompts.h"
#include "tessera/net/declare.h"

namespace tessera::models::qwen2 {

using at::Tensor;
using net::Context;
using net::Flow;

namespace {

constexpr int64_t kSkipped = 2;  // layers whose output no prompt is

class Embedding final : public net::Unit {
 public:
  explicit Embedding(const Config& c) : Unit({.name = "embed_tokens", .kind = "embedding"}, ""), c_(c) {}
  Flow forward(Context& ctx, const Flow& in) const override {
    return {{ctx.embedding("embed_tokens", in.stream[0], {c_.vocab_size, c_.dim})}, {}};
  }

 private:
  const Config c_;
};

class Block final : public net::Unit {
 public:
  Block(const Config& c, int64_t index) : Unit({.name = "layers." + std::to_string(index), .kind = "block"}), c_(c) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const net::Norm norm{.kind = net::Norm::rms, .eps = c_.eps};
    const auto linear = [&](const char* site, const Tensor& x, int64_t out) {
      return ctx.linear(site, x, {.out = out, .bias = false});
    };
    Tensor x = in.stream[0];  // [T, dim]
    x = x + linear("self_attn.o_proj", mixed(ctx, ctx.norm("input_layernorm", x, norm)), c_.dim);
    const Tensor y = ctx.norm("post_attention_layernorm", x, norm);
    const Tensor gate = at::silu(linear("mlp.gate_proj", y, c_.dim_ffn));  // [T, ffn]
    return {{x + linear("mlp.down_proj", gate * linear("mlp.up_proj", y, c_.dim_ffn), c_.dim)}, {}};
  }

 private:
  Tensor mixed(Context& ctx, const Tensor& y) const {
    const int64_t d = c_.head_dim();
    const auto turned = [&](const char* site, int64_t heads) {
      return ctx.rope(site, ctx.linear(site, y, {.out = heads * d}), heads, net::RopeStyle::half_split);
    };
    const Tensor q = turned("self_attn.q_proj", c_.num_heads), k = turned("self_attn.k_proj", c_.num_kv_heads);
    const Tensor v = ctx.linear("self_attn.v_proj", y, {.out = c_.num_kv_heads * d});
    return causal_attention(ctx.tokens().offsets, q, k, v,
                            {.kv_heads = c_.num_kv_heads, .head_dim = d, .divisor = std::sqrt(static_cast<double>(d))});
  }

  const Config c_;
};

class FinalNorm final : public net::Unit {
 public:
  explicit FinalNorm(const Config& c) : Unit({.name = "norm", .kind = "norm"}, ""), eps_(c.eps) {}
  Flow forward(Context& ctx, const Flow& in) const override {
    return {{ctx.norm("norm", in.stream[0], {.kind = net::Norm::rms, .eps = eps_})}, {}};
  }

 private:
  const double eps_;
};

}  // namespace

const std::vector<std::pair<std::string, Config>>& presets() {
  static const std::vector<std::pair<std::string, Config>> table = {
      {"qwen2.5-vl-7b", {}},
      {"qwen2.5-vl-demo",
       {.vocab_size = 2048, .dim = 64, .dim_ffn = 128, .num_layers = 4, .num_heads = 4, .num_kv_heads = 2}},
  };
  return table;
}

Qwen2::Qwen2(const Config& config, bool whole) : config_(config) {
  units_.push_back(std::make_unique<Embedding>(config));
  for (int64_t i = 0; i < config.num_layers - (whole ? 0 : kSkipped); ++i)
    units_.push_back(std::make_unique<Block>(config, i));
  if (whole) units_.push_back(std::make_unique<FinalNorm>(config));
  net::declare_frozen(units_, {{net::id_without_memory()}, {}}, 1);
}

net::Batch Qwen2::pack(const std::vector<std::vector<int64_t>>& prompts) const {
  net::Batch batch = pack_prompts(prompts, config_.vocab_size, "qwen2.pack");
  add_rotations(batch, config_.head_dim(), config_.rope_theta);
  return batch;
}

std::string Qwen2::fingerprint() const {
  const Config& c = config_;
  std::string text = "qwen2";
  for (const int64_t size : {c.vocab_size, c.dim, c.dim_ffn, c.num_layers, c.num_heads, c.num_kv_heads})
    text += "-" + std::to_string(size);
  return text + (c.rope_theta == Config{}.rope_theta ? "" : "-theta" + std::to_string(c.rope_theta));
}

void Qwen2::initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) const {
  Initial initial = Initial::normal(1 / std::sqrt(static_cast<double>(param.shape.back())));
  if (param.name == "embed_tokens.weight") initial = Initial::normal(1);
  if (param.shape.size() == 1) initial = Initial::constant(param.name.ends_with(".bias") ? 0 : 1);
  draw_initial(initial, seed, param.name, first, count, out);
}

namespace {

using Json = nlohmann::ordered_json;

/// Heads are in no shape: of the given config or of the preset of these sizes, else of 128 channels as every released one.
Json config_json(const ConfigSource& source) {
  const Sizes& size = source.size;
  const auto* preset = preset_of(presets(), size.shapes);
  const Config known = preset ? preset->second : Config{};
  const auto given = [&](const char* key, auto absent) { return source.given.get(key, key, absent); };
  const int64_t dim = size("embed_tokens.weight", 1), wide = size("layers.0.self_attn.k_proj.weight", 0);
  const int64_t heads = given("num_attention_heads", preset ? known.num_heads : std::max<int64_t>(1, dim / 128));
  Json out = source.given.base("rms_norm_eps");
  out.update(Json{{"_class_name", "Qwen2_5_VLTextModel"},
                  {"architectures", {"Qwen2_5_VLTextModel"}},
                  {"model_type", "qwen2_5_vl_text"},
                  {"vocab_size", size("embed_tokens.weight", 0)},
                  {"hidden_size", dim},
                  {"intermediate_size", size("layers.0.mlp.up_proj.weight", 0)},
                  {"num_hidden_layers", count_blocks(size.shapes)},
                  {"num_attention_heads", heads},
                  {"num_key_value_heads", given("num_key_value_heads", heads > 0 ? wide * heads / dim : int64_t{1})},
                  {"rms_norm_eps", given("rms_norm_eps", known.eps)},
                  {"hidden_act", "silu"},
                  {"use_sliding_window", false}});
  if (!out.contains("rope_parameters") && !out.contains("rope_theta")) out["rope_theta"] = known.rope_theta;
  return out;
}

WeightForm weight_form() {
  return {.kind = ModelKind::text_encoder,
          .title = "Qwen2.5-VL",
          .model = "qwen2.5-vl",
          .variant = {},
          .marks = {"layers.0.self_attn.q_proj.bias", "layers.0.mlp.gate_proj.weight", "embed_tokens.weight"},
          .names = {.diffusers = {}, .ours_are_diffusers = true},
          .refine =
              [](const Shapes& official, Identity& identity) {
                if (const auto* preset = preset_of(presets(), official)) identity.model = preset->first;
              },
          .config = config_json,
          .config_marks = {"use_sliding_window", "text_config"}};
}

NamedTensors case_results(const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& hidden,
                          const std::function<Tensor(const std::string& name)>&) {
  return {{"out.last_hidden_state", masked_rows(encoder, file, hidden)}};
}

template <bool kWhole>
std::unique_ptr<net::TextEncoder> from_json(const std::string& json, const std::string& file) {
  return std::make_unique<Qwen2>(parse_config(json, file), kWhole);
}

}  // namespace

TextEncoderMake text_encoder() {
  return {.presets = [] { return names_of(presets()); },
          .from_preset = [](const std::string& preset) -> std::unique_ptr<net::TextEncoder> {
            return std::make_unique<Qwen2>(find_named(presets(), "text encoder", preset));
          },
          .from_json = from_json<false>,
          .weights = weight_form(),
          .verify = {.kind = "qwen25_vl_text",
                     .pack = pack_masked,
                     .results = case_results,
                     .state = masked_rows,
                     .whole = from_json<true>},
          .in_bf16 = {"qwen2.5-vl-7b"}};
}

}  // namespace tessera::models::qwen2
