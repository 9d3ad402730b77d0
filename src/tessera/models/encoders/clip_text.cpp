#include "tessera/models/encoders/clip_text.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/models/common/initial.h"
#include "tessera/models/common/names.h"
#include "tessera/models/encoders/prompts.h"
#include "tessera/net/declare.h"

namespace tessera::models::clip_text {

using at::Tensor;
using net::Context;
using net::Flow;

namespace {

constexpr const char* kPrefix = "text_model.";  // of every tensor in transformers' files

class Embedding final : public net::Unit {
 public:
  explicit Embedding(const Config& c) : Unit({.name = "embeddings", .kind = "embedding"}, kPrefix), c_(c) {}
  Flow forward(Context& ctx, const Flow& in) const override {  // ids and places, [T] each
    const Tensor words = ctx.embedding("embeddings.token_embedding", in.stream[0], {c_.vocab_size, c_.dim});
    return {{words + ctx.embedding("embeddings.position_embedding", in.stream[1], {c_.most_tokens, c_.dim})}, {}};
  }

 private:
  const Config c_;
};

class Block final : public net::Unit {
 public:
  Block(const Config& c, const std::string& name)
      : Unit({.name = name, .kind = "block"}, kPrefix + name + "."), c_(c) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    Tensor x = in.stream[0];  // [T, dim]
    x = x + attention(ctx, ctx.norm("layer_norm1", x, {.eps = c_.eps}));
    const Tensor y = ctx.norm("layer_norm2", x, {.eps = c_.eps});
    const Tensor hidden = ctx.linear("mlp.fc1", y, {.out = c_.dim_ffn});  // [T, ffn]
    return {{x + ctx.linear("mlp.fc2", hidden * at::sigmoid(hidden * 1.702), {.out = c_.dim})}, {}};
  }

 private:
  Tensor attention(Context& ctx, const Tensor& y) const {
    const Tensor q = ctx.linear("self_attn.q_proj", y), k = ctx.linear("self_attn.k_proj", y),
                 v = ctx.linear("self_attn.v_proj", y);
    const int64_t d = c_.dim / c_.num_heads;
    const Tensor scaled = q * (1 / std::sqrt(static_cast<double>(d)));
    return ctx.linear("self_attn.out_proj",
                      causal_attention(ctx.tokens().offsets, scaled, k, v, {.kv_heads = c_.num_heads, .head_dim = d}));
  }

  const Config c_;
};

class FinalNorm final : public net::Unit {
 public:
  explicit FinalNorm(const Config& c) : Unit({.name = "final_layer_norm", .kind = "norm"}, kPrefix), eps_(c.eps) {}
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
  for (int64_t i = 0; i < config.num_layers; ++i)
    units_.push_back(std::make_unique<Block>(config, "encoder.layers." + std::to_string(i)));
  units_.push_back(std::make_unique<FinalNorm>(config));
  const Tensor row = net::id_without_memory();
  net::declare_frozen(units_, {{row, row}, {}}, 1);
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

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kWords = "text_model.embeddings.token_embedding.weight";
constexpr const char* kPlaces = "text_model.embeddings.position_embedding.weight";

int64_t layers_of(const Shapes& official) {
  int64_t count = 0;
  while (official.count("text_model.encoder.layers." + std::to_string(count) + ".layer_norm1.weight") > 0) ++count;
  return count;
}

const std::pair<std::string, Config>* preset_of(const Shapes& official) {
  for (const auto& preset : presets())
    if (preset.second.vocab_size == size_of(official, kWords, 0) && preset.second.dim == size_of(official, kWords, 1) &&
        preset.second.num_layers == layers_of(official))
      return &preset;
  return nullptr;
}

/// Heads are in no shape: of the given config or of the preset of these sizes; else one for 64 channels, as in every tower
/// that was released.
Json config_json(const ConfigSource& source) {
  const Sizes& size = source.size;
  const auto* preset = preset_of(size.shapes);
  const auto given = [&](const char* key, auto absent) { return source.given.get(key, key, absent); };
  const int64_t dim = size(kWords, 1), usual = dim % 64 == 0 ? dim / 64 : 1;
  Json out = source.given.base("max_position_embeddings");
  out.update(Json{{"_class_name", "CLIPTextModel"},
                  {"architectures", {"CLIPTextModel"}},
                  {"model_type", "clip_text_model"},
                  {"vocab_size", size(kWords, 0)},
                  {"hidden_size", dim},
                  {"intermediate_size", size("text_model.encoder.layers.0.mlp.fc1.weight", 0)},
                  {"num_hidden_layers", layers_of(size.shapes)},
                  {"num_attention_heads", given("num_attention_heads", preset ? preset->second.num_heads : usual)},
                  {"max_position_embeddings", size(kPlaces, 0)},
                  {"hidden_act", "quick_gelu"},
                  {"layer_norm_eps", given("layer_norm_eps", 1e-5)},
                  {"eos_token_id", given("eos_token_id", preset ? preset->second.eos : int64_t{2})},
                  {"projection_dim", given("projection_dim", dim)}});
  return out;
}

WeightForm weight_form() {
  return {.kind = ModelKind::text_encoder,
          .title = "CLIP's text tower",
          .model = "clip-text",
          .variant = {},
          .marks = {kWords, kPlaces, "text_model.final_layer_norm.weight"},
          .names = {},
          .refine =
              [](const Shapes& official, Identity& identity) {
                if (const auto* preset = preset_of(official)) identity.model = preset->first;
              },
          .config = config_json,
          .config_marks = {"projection_dim"}};
}

std::vector<std::vector<int64_t>> case_prompts(const CaseTensors& file) {
  const Tensor ids = file.tensor("in.input_ids").to(at::kLong).contiguous();
  std::vector<std::vector<int64_t>> prompts;
  for (int64_t b = 0; b < ids.size(0); ++b) {
    const int64_t* row = ids.const_data_ptr<int64_t>() + b * ids.size(1);
    prompts.emplace_back(row, row + ids.size(1));
  }
  return prompts;
}

/// `rows` [B * L, dim].
Tensor case_state(const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& rows) {
  return rows.view({file.tensor("in.input_ids").size(0), -1, encoder.dim()});
}

NamedTensors case_results(const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& hidden,
                          const std::function<Tensor(const std::string& name)>&) {
  const auto prompts = case_prompts(file);
  const Tensor rows = case_state(encoder, file, hidden);
  std::vector<Tensor> pooled;
  for (size_t b = 0; b < prompts.size(); ++b)
    pooled.push_back(rows[static_cast<int64_t>(b)][encoder.pooled_row(prompts[b])]);
  return {{"out.last_hidden_state", rows}, {"out.pooler_output", at::stack(pooled)}};
}

}  // namespace

TextEncoderMake text_encoder() {
  return {.presets = [] { return names_of(presets()); },
          .from_preset = [](const std::string& preset) -> std::unique_ptr<net::TextEncoder> {
            return std::make_unique<ClipText>(find_named(presets(), "text encoder", preset));
          },
          .from_json = [](const std::string& json, const std::string& file) -> std::unique_ptr<net::TextEncoder> {
            return std::make_unique<ClipText>(parse_config(json, file));
          },
          .weights = weight_form(),
          .verify = {.kind = "clip_text",
                     .pack = [](const net::TextEncoder& encoder,
                                const CaseTensors& file) { return encoder.pack(case_prompts(file)); },
                     .results = case_results,
                     .state = case_state,
                     .last_state_is_result = false}};
}

}  // namespace tessera::models::clip_text
