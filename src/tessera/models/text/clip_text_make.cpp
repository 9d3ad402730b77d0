#include "tessera/models/text/clip_text_make.h"

#include "tessera/models/common/unknown.h"
#include "tessera/models/text/clip_text.h"

namespace tessera::models::clip_text {

namespace {

using at::Tensor;
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
