#include "tessera/models/text/umt5_weight_form.h"

#include "tessera/models/text/umt5.h"
#include "tessera/models/text/umt5_names.h"

namespace tessera::models::umt5 {

namespace {

using Json = nlohmann::ordered_json;

std::string model_of(const Shapes& official, bool shared_positions) {
  for (const auto& [name, config] : shared_positions ? t5_presets() : presets())
    if (config.vocab_size == size_of(official, "token_embedding.weight", 0) &&
        config.dim == size_of(official, "token_embedding.weight", 1) && config.num_layers == count_blocks(official))
      return name;
  return shared_positions ? "t5" : "umt5";
}

Json config_json(const ConfigSource& source) {
  const auto& [diffusers, identity, size, given, file] = source;
  Json out;
  const int64_t heads = size("blocks.0.pos_embedding.embedding.weight", 1);
  const int64_t attention = size("blocks.0.attn.q.weight", 0), layers = count_blocks(size.shapes);
  out = given.base(diffusers ? "d_model" : "dim_attn");
  out["vocab_size"] = size("token_embedding.weight", 0);
  if (!diffusers) {
    out.update(Json{{"_class_name", "T5Encoder"},
                    {"dim", size("token_embedding.weight", 1)},
                    {"dim_attn", attention},
                    {"dim_ffn", size("blocks.0.ffn.fc1.weight", 0)},
                    {"num_heads", heads},
                    {"num_layers", layers},
                    {"num_buckets", size("blocks.0.pos_embedding.embedding.weight", 0)},
                    {"shared_pos", false},
                    {"dropout", given.get<double>("dropout", "dropout_rate", 0.1)}});
    return out;
  }
  out.update(Json{
      {"_class_name", "UMT5EncoderModel"},
      {"architectures", {"UMT5EncoderModel"}},
      {"model_type", "umt5"},
      {"d_model", size("token_embedding.weight", 1)},
      {"d_kv", attention / heads},
      {"d_ff", size("blocks.0.ffn.fc1.weight", 0)},
      {"num_layers", layers},
      {"num_heads", heads},
      {"relative_attention_num_buckets", size("blocks.0.pos_embedding.embedding.weight", 0)},
      {"relative_attention_max_distance", given.get<int64_t>("relative_attention_max_distance", "max_distance", 128)},
      {"dropout_rate", given.get<double>("dropout", "dropout_rate", 0.1)},
      {"layer_norm_epsilon", given.get<double>("eps", "layer_norm_epsilon", 1e-6)},
      {"feed_forward_proj", "gated-gelu"},
      {"dense_act_fn", "gelu_new"},
      {"is_gated_act", true},
      {"is_encoder_decoder", true},
      {"pad_token_id", 0},
      {"eos_token_id", 1},
      {"decoder_start_token_id", 0},
      {"tie_word_embeddings", false},
      {"scalable_attention", true}});
  return out;
}

}  // namespace

WeightForm weight_form() {
  return {.kind = ModelKind::text_encoder,
          .title = "UMT5",
          .model = "umt5",
          .variant = {},
          .marks = {"blocks.0.ffn.gate.0.weight", "blocks.0.attn.q.weight", "norm.weight",
                    "blocks.1.pos_embedding.embedding.weight"},
          .names = {.diffusers = {hf_names()},
                    // of transformers; the same tensor as shared.weight
                    .tied = {{"encoder.embed_tokens.weight", "token_embedding.weight"}},
                    .comfyui_as_diffusers = true},
          .refine = [](const Shapes& official, Identity& identity) { identity.model = model_of(official, false); },
          .config = config_json,
          .config_marks = {"dim_attn", "d_model"}};
}

/// T5 has no other program's config but transformers', whose fields UMT5 has as well.
WeightForm t5_weight_form() {
  WeightForm form = weight_form();
  form.title = "T5", form.model = "t5";
  form.marks.pop_back();
  form.refine = [](const Shapes& official, Identity& identity) { identity.model = model_of(official, true); };
  form.config = [](const ConfigSource& source) {
    Json out = config_json(source);
    if (!source.diffusers) return out;
    out["_class_name"] = "T5EncoderModel", out["architectures"] = {"T5EncoderModel"}, out["model_type"] = "t5";
    out.erase("scalable_attention");
    return out;
  };
  return form;
}

}  // namespace tessera::models::umt5
