#include "tessera/models/text/gemma2_weight_form.h"

#include "tessera/base/check.h"
#include "tessera/models/text/gemma2.h"

namespace tessera::models::gemma2 {

namespace {

using Json = nlohmann::ordered_json;

/// The layers that the names count.
int64_t layers_of(const Shapes& official) {
  int64_t count = 0;
  while (official.count("layers." + std::to_string(count) + ".self_attn.q_proj.weight") > 0) ++count;
  return count;
}

const std::pair<std::string, Config>* preset_of(const Shapes& official) {
  for (const auto& preset : presets())
    if (preset.second.vocab_size == size_of(official, "embed_tokens.weight", 0) &&
        preset.second.dim == size_of(official, "embed_tokens.weight", 1) &&
        preset.second.num_layers == layers_of(official))
      return &preset;
  return nullptr;
}

/// The head dimension is in no shape: it comes from the given config or from the preset of these sizes.
Json config_json(const ConfigSource& source) {
  const Sizes& size = source.size;
  const auto* preset = preset_of(size.shapes);
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
                  {"num_hidden_layers", layers_of(size.shapes)},
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
                if (const auto* preset = preset_of(official)) identity.model = preset->first;
              },
          .config = config_json,
          .config_marks = {"query_pre_attn_scalar"}};
}

}  // namespace tessera::models::gemma2
