#include "tessera/models/encoders/configs.h"

#include <algorithm>
#include <cmath>

#include "tessera/models/common/config_reader.h"

namespace tessera::models::umt5 {

Config parse_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  json.without_effect({"dropout", "dropout_rate", "is_encoder_decoder", "use_cache", "pad_token_id", "eos_token_id",
                       "tie_word_embeddings", "torch_dtype", "transformers_version"});
  Config c;
  c.vocab_size = json.size("vocab_size");
  c.num_heads = json.size("num_heads");
  c.num_layers = json.size("num_layers");
  if (json.has("d_model")) {
    json.expect("feed_forward_proj", "gated-gelu");
    c.shared_positions = json.text("model_type", "") == "t5";
    c.dim = json.size("d_model");
    c.dim_attn = json.size("d_kv") * c.num_heads;
    json.expect_narrow("d_kv times num_heads", static_cast<double>(c.dim_attn));
    c.dim_ffn = json.size("d_ff");
    c.num_buckets = json.size("relative_attention_num_buckets", c.num_buckets);
    c.max_distance = json.size("relative_attention_max_distance", c.max_distance);
    c.eps = json.above_zero("layer_norm_epsilon", c.eps);
  } else {
    json.expect("shared_pos", false);
    c.dim = json.size("dim");
    c.dim_attn = json.size("dim_attn");
    c.dim_ffn = json.size("dim_ffn");
    c.num_buckets = json.size("num_buckets", c.num_buckets);
  }
  if (c.dim_attn % c.num_heads != 0)
    json.fail("dim_attn " + std::to_string(c.dim_attn) + " is not a multiple of num_heads " +
              std::to_string(c.num_heads));
  if (c.num_buckets % 4 != 0) json.fail("num_buckets " + std::to_string(c.num_buckets) + " is not a multiple of 4");
  if (c.max_distance <= c.num_buckets / 4)
    json.fail("max_distance " + std::to_string(c.max_distance) + " is too small for the buckets");
  return c;
}

}  // namespace tessera::models::umt5

namespace tessera::models::gemma2 {

namespace {

/// Newer config files list what the older ones leave to the architecture: sliding windows in the layers 0, 2, 4, ...
void expect_alternating(const ConfigReader& json, int64_t layers) {
  nlohmann::json types = nlohmann::json::array();
  for (int64_t i = 0; i < layers; ++i) types.push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  json.expect("layer_types", types);
}

}  // namespace

Config parse_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  json.expect("model_type", "gemma2");
  json.expect("hidden_activation", "gelu_pytorch_tanh");
  json.expect("attention_bias", false);
  json.expect("rope_scaling", nullptr);
  json.without_effect({"attention_dropout", "final_logit_softcapping", "max_position_embeddings", "pad_token_id",
                       "bos_token_id", "eos_token_id", "use_cache", "torch_dtype", "transformers_version"});
  Config c;
  c.vocab_size = json.size("vocab_size");
  c.dim = json.size("hidden_size");
  c.dim_ffn = json.size("intermediate_size");
  c.num_layers = json.size("num_hidden_layers");
  c.num_heads = json.size("num_attention_heads");
  c.num_kv_heads = json.size("num_key_value_heads");
  c.head_dim = json.size("head_dim", c.head_dim);
  c.sliding_window = json.size("sliding_window", c.sliding_window);
  c.query_pre_attn_scalar = json.real("query_pre_attn_scalar", c.query_pre_attn_scalar);
  c.score_cap = json.real("attn_logit_softcapping", c.score_cap);
  c.rope_theta = json.real("rope_theta", c.rope_theta);
  c.eps = json.above_zero("rms_norm_eps", c.eps);
  expect_alternating(json, c.num_layers);
  json.expect_narrow("num_attention_heads times head_dim", static_cast<double>(c.num_heads * c.head_dim));
  if (c.num_heads % c.num_kv_heads != 0)
    json.fail("num_attention_heads " + std::to_string(c.num_heads) + " is not a multiple of num_key_value_heads " +
              std::to_string(c.num_kv_heads));
  if (c.head_dim % 2 != 0)
    json.fail("head_dim " + std::to_string(c.head_dim) + " is odd: rotary pairs need both halves");
  if (c.query_pre_attn_scalar <= 0 || c.score_cap <= 0)
    json.fail("query_pre_attn_scalar and attn_logit_softcapping must be positive");
  return c;
}

}  // namespace tessera::models::gemma2

namespace tessera::models::qwen2 {

namespace {

/// The rotary embedding, in a field of its own or beside the sizes; of sections for time, height and width, which are one
/// for text.
double theta_of(const ConfigReader& json, double absent) {
  const ConfigReader rope = json.inner("rope_parameters"), scaling = json.inner("rope_scaling");
  for (const ConfigReader* of : {&rope, &scaling}) {
    for (const char* key : {"rope_type", "type"})
      if (const std::string type = of->text(key, "default"); type != "default" && type != "mrope")
        of->fail(std::string(key) + " is '" + type + "', supported are default and mrope");
    of->without_effect({"mrope_section"});
  }
  return rope.real("rope_theta", json.real("rope_theta", absent));
}

}  // namespace

Config parse_config(std::string_view text, const std::string& file) {
  const ConfigReader all(text, file), part = all.inner("text_config");
  const ConfigReader& json = part.has("hidden_size") ? part : all;
  const std::string type = json.text("model_type", "qwen2_5_vl_text");
  constexpr std::string_view kTypes[] = {"qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"};
  if (std::ranges::find(kTypes, type) == std::end(kTypes))
    json.fail("model_type is '" + type + "', supported is qwen2_5_vl_text");
  json.expect("hidden_act", "silu");
  json.expect("use_sliding_window", false);
  json.without_effect({"attention_dropout", "max_position_embeddings", "max_window_layers", "sliding_window",
                       "initializer_range", "pad_token_id", "bos_token_id", "eos_token_id", "use_cache",
                       "tie_word_embeddings", "torch_dtype", "dtype", "transformers_version"});
  Config c;
  c.vocab_size = json.size("vocab_size");
  c.dim = json.size("hidden_size");
  c.dim_ffn = json.size("intermediate_size");
  c.num_layers = json.size("num_hidden_layers");
  c.num_heads = json.size("num_attention_heads");
  c.num_kv_heads = json.size("num_key_value_heads", c.num_heads);
  c.rope_theta = theta_of(json, c.rope_theta);
  c.eps = json.above_zero("rms_norm_eps", c.eps);
  json.expect("layer_types", std::vector<std::string>(static_cast<size_t>(c.num_layers), "full_attention"));
  if (c.num_layers < 3) json.fail("two layers or fewer: the hidden states are those before the last two");
  if (c.dim % c.num_heads != 0 || c.head_dim() % 2 != 0)
    json.fail("hidden_size " + std::to_string(c.dim) + " does not divide into " + std::to_string(c.num_heads) +
              " heads with both halves of rotary pairs");
  json.expect("head_dim", c.head_dim());
  if (c.num_heads % c.num_kv_heads != 0)
    json.fail("num_attention_heads " + std::to_string(c.num_heads) + " is not a multiple of num_key_value_heads " +
              std::to_string(c.num_kv_heads));
  return c;
}

}  // namespace tessera::models::qwen2

namespace tessera::models::clip_text {

Config parse_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  json.expect("hidden_act", "quick_gelu");
  json.without_effect({"bos_token_id", "pad_token_id", "projection_dim", "attention_dropout"});
  Config c;
  c.vocab_size = json.size("vocab_size", c.vocab_size);
  c.dim = json.size("hidden_size");
  c.dim_ffn = json.size("intermediate_size");
  c.num_layers = json.size("num_hidden_layers");
  c.num_heads = json.size("num_attention_heads");
  c.most_tokens = json.size("max_position_embeddings", c.most_tokens);
  c.eos = json.size("eos_token_id", c.eos);
  c.eps = json.above_zero("layer_norm_eps", c.eps);
  if (c.dim % c.num_heads != 0)
    json.fail("hidden_size " + std::to_string(c.dim) + " is not a multiple of num_attention_heads " +
              std::to_string(c.num_heads));
  return c;
}

}  // namespace tessera::models::clip_text

namespace tessera::models::clip {

namespace {

std::array<double, 3> colours(const ConfigReader& json, const char* key, const std::array<double, 3>& absent) {
  const std::vector<double> values = json.reals(key, {absent[0], absent[1], absent[2]});
  if (values.size() != 3)
    json.fail(std::string(key) + " has " + std::to_string(values.size()) + " numbers, expected 3");
  return {values[0], values[1], values[2]};
}

Config parse_official(const ConfigReader& json) {
  json.expect("pool_type", "token");
  json.expect("pre_norm", true);
  json.expect("post_norm", false);
  json.expect("activation", "gelu");
  Config c;
  c.dim = json.size("dim");
  const double mlp_dim = json.real("mlp_ratio", 4) * static_cast<double>(c.dim);
  json.expect_narrow("mlp_ratio times dim", mlp_dim);
  c.mlp_dim = std::llround(mlp_dim);
  if (c.mlp_dim < 1) json.fail("mlp_ratio makes a feed-forward without a channel");
  c.num_heads = json.size("num_heads");
  c.num_layers = json.size("num_layers");
  c.eps = json.above_zero("norm_eps", c.eps);
  c.mean = colours(json, "mean", c.mean);
  c.deviation = colours(json, "std", c.deviation);
  return c;
}

/// SigLIP's tower of these sizes, whose pictures are numbers in [-1, 1].
Config siglip(Config sizes = {}) {
  sizes.siglip = true;
  sizes.eps = 1e-6;
  sizes.mean = sizes.deviation = {0.5, 0.5, 0.5};
  return sizes;
}

Config parse_hf(const ConfigReader& json) {
  Config c;
  if (json.text("model_type", "") == "siglip_vision_model") {
    c = siglip();
    json.expect("num_channels", 3);
    json.without_effect({"attention_dropout", "vision_use_head"});
  }
  json.expect("hidden_act", c.siglip ? "gelu_pytorch_tanh" : "gelu");  // OpenAI's own towers have quick_gelu
  c.dim = json.size("hidden_size");
  c.mlp_dim = json.size("intermediate_size");
  c.num_heads = json.size("num_attention_heads");
  c.num_layers = json.size("num_hidden_layers");
  c.eps = json.above_zero("layer_norm_eps", c.eps);
  return c;
}

}  // namespace

Config parse_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  json.without_effect({"out_dim", "projection_dim"});  // of a head behind the features that are used
  Config c = json.has("hidden_size") ? parse_hf(json) : parse_official(json);
  c.image_size = json.size("image_size", c.image_size);
  c.patch = json.size("patch_size", c.patch);
  if (c.siglip ? c.image_size < c.patch : c.image_size % c.patch != 0)
    json.fail("image_size " + std::to_string(c.image_size) + " is not a multiple of patch_size " +
              std::to_string(c.patch));
  if (c.dim % c.num_heads != 0)
    json.fail("a width of " + std::to_string(c.dim) + " does not divide into " + std::to_string(c.num_heads) +
              " heads");
  if (!c.siglip && c.num_layers < 2) json.fail("one layer: the features are those of the last layer but one");
  return c;
}

Config config_of(const std::map<std::string, std::vector<int64_t>>& official, const std::string& file) {
  const auto size = [&](const std::string& name, size_t dim) {
    const auto found = official.find(name);
    check_input(
        found != official.end() && dim < found->second.size() && found->second[dim] > 0, "models.clip",
        file + ": lacks " + name + ": it is no CLIP image tower",
        "give models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth or the image_encoder/ of a diffusers folder");
    return found->second[dim];
  };
  const bool classless = !official.contains("visual.cls_embedding") && official.contains("visual.post_norm.weight");
  Config c = classless ? siglip() : Config{};
  c.dim = size("visual.patch_embedding.weight", 0);
  c.patch = size("visual.patch_embedding.weight", 2);
  c.mlp_dim = size("visual.transformer.0.mlp.0.weight", 0);
  const auto positions = official.find("visual.pos_embedding");  // [1, rows, dim] or [rows, dim]
  const size_t dims = positions == official.end() ? 0 : positions->second.size();
  check_input(dims >= 2 && positions->second[dims - 2] >= 1, "models.clip",
              file + ": visual.pos_embedding is missing, or has another form than [1, rows, dim]");
  const int64_t rows = positions->second[dims - 2];
  const int64_t first = c.siglip ? 0 : 1;
  const auto side = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(rows - first))));
  check_input(
      side * side + first == rows, "models.clip",
      file + ": " + std::to_string(rows) + " positions are not " + (first > 0 ? "one and " : "") + "a square's");
  c.image_size = side * c.patch;
  c.num_layers = 0;
  while (official.count("visual.transformer." + std::to_string(c.num_layers) + ".norm1.weight")) ++c.num_layers;
  c.num_heads = c.dim % 80 == 0 ? c.dim / 80 : 1;
  for (const auto& [name, preset] : presets()) {
    if (preset.dim != c.dim || preset.siglip != c.siglip) continue;
    c.num_heads = preset.num_heads;
    if (preset.side() == side && preset.patch == c.patch) c.image_size = preset.image_size;  // with what is not seen
  }
  return c;
}

const std::vector<std::pair<std::string, Config>>& presets() {
  static const std::vector<std::pair<std::string, Config>> table = {
      {"clip-vit-h", {}},
      {"clip-demo", {.image_size = 28, .dim = 24, .mlp_dim = 48, .num_heads = 2, .num_layers = 3}},
      {"siglip-so400m", siglip({.image_size = 384, .dim = 1152, .mlp_dim = 4304, .num_heads = 16, .num_layers = 27})},
      {"siglip-demo", siglip({.image_size = 30, .dim = 20, .mlp_dim = 40, .num_heads = 2, .num_layers = 2})},
  };
  return table;
}

}  // namespace tessera::models::clip

namespace tessera::models::wav2vec {

int64_t Config::shortest() const {
  int64_t samples = 1;
  for (size_t i = conv_kernel.size(); i-- > 0;) samples = (samples - 1) * conv_stride[i] + conv_kernel[i];
  return samples;
}

namespace {

/// Of its training, of heads that are not used, and of transformers' classes in general.
constexpr std::initializer_list<const char*> kWithoutEffect = {"return_dict",
                                                               "output_hidden_states",
                                                               "output_attentions",
                                                               "torchscript",
                                                               "use_bfloat16",
                                                               "tf_legacy_loss",
                                                               "pruned_heads",
                                                               "tie_word_embeddings",
                                                               "chunk_size_feed_forward",
                                                               "is_encoder_decoder",
                                                               "is_decoder",
                                                               "add_cross_attention",
                                                               "tie_encoder_decoder",
                                                               "max_length",
                                                               "min_length",
                                                               "do_sample",
                                                               "early_stopping",
                                                               "num_beams",
                                                               "num_beam_groups",
                                                               "diversity_penalty",
                                                               "temperature",
                                                               "top_k",
                                                               "top_p",
                                                               "typical_p",
                                                               "repetition_penalty",
                                                               "length_penalty",
                                                               "no_repeat_ngram_size",
                                                               "encoder_no_repeat_ngram_size",
                                                               "num_return_sequences",
                                                               "output_scores",
                                                               "return_dict_in_generate",
                                                               "remove_invalid_values",
                                                               "id2label",
                                                               "label2id",
                                                               "bos_token_id",
                                                               "pad_token_id",
                                                               "eos_token_id",
                                                               "bad_words_ids",
                                                               "cross_attention_hidden_size",
                                                               "decoder_start_token_id",
                                                               "exponential_decay_length_penalty",
                                                               "finetuning_task",
                                                               "forced_bos_token_id",
                                                               "forced_eos_token_id",
                                                               "prefix",
                                                               "problem_type",
                                                               "sep_token_id",
                                                               "suppress_tokens",
                                                               "begin_suppress_tokens",
                                                               "task_specific_params",
                                                               "tokenizer_class",
                                                               "torch_dtype",
                                                               "_name_or_path",
                                                               "_attn_implementation_autoset",
                                                               "transformers_version",
                                                               "num_feat_extract_layers",
                                                               "hidden_dropout",
                                                               "attention_dropout",
                                                               "activation_dropout",
                                                               "feat_proj_dropout",
                                                               "feat_quantizer_dropout",
                                                               "final_dropout",
                                                               "layerdrop",
                                                               "initializer_range",
                                                               "vocab_size",
                                                               "use_weighted_layer_sum",
                                                               "apply_spec_augment",
                                                               "mask_time_prob",
                                                               "mask_time_length",
                                                               "mask_time_min_masks",
                                                               "mask_feature_prob",
                                                               "mask_feature_length",
                                                               "mask_feature_min_masks",
                                                               "num_codevectors_per_group",
                                                               "num_codevector_groups",
                                                               "contrastive_logits_temperature",
                                                               "num_negatives",
                                                               "codevector_dim",
                                                               "proj_codevector_dim",
                                                               "diversity_loss_weight",
                                                               "ctc_loss_reduction",
                                                               "ctc_zero_infinity",
                                                               "adapter_kernel_size",
                                                               "adapter_stride",
                                                               "num_adapter_layers",
                                                               "adapter_attn_dim",
                                                               "output_hidden_size",
                                                               "classifier_proj_size",
                                                               "tdnn_dim",
                                                               "tdnn_kernel",
                                                               "tdnn_dilation",
                                                               "xvector_output_dim"};

}  // namespace

Config parse_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  json.expect("model_type", "wav2vec2");
  json.expect("feat_extract_norm", "layer");
  json.expect("feat_extract_activation", "gelu");
  json.expect("hidden_act", "gelu");
  json.expect("conv_bias", true);
  json.expect("do_stable_layer_norm", true);
  json.expect("add_adapter", false);
  json.without_effect(kWithoutEffect);
  Config c;
  c.hidden_size = json.size("hidden_size", c.hidden_size);
  c.num_layers = json.size("num_hidden_layers", c.num_layers);
  c.num_heads = json.size("num_attention_heads", c.num_heads);
  c.ffn_dim = json.size("intermediate_size", c.ffn_dim);
  c.conv_dim = json.sizes("conv_dim", c.conv_dim);
  c.conv_kernel = json.sizes("conv_kernel", c.conv_kernel);
  c.conv_stride = json.sizes("conv_stride", c.conv_stride);
  c.position_kernel = json.size("num_conv_pos_embeddings", c.position_kernel);
  c.position_groups = json.size("num_conv_pos_embedding_groups", c.position_groups);
  c.eps = json.above_zero("layer_norm_eps", c.eps);
  if (c.conv_kernel.size() != c.conv_dim.size() || c.conv_stride.size() != c.conv_dim.size())
    json.fail("conv_dim, conv_kernel and conv_stride are lists of different lengths");
  double samples = 1;  // as shortest() counts them
  for (size_t i = c.conv_kernel.size(); i-- > 0;)
    samples = (samples - 1) * static_cast<double>(c.conv_stride[i]) + static_cast<double>(c.conv_kernel[i]);
  json.expect_narrow("the number of samples that conv_kernel and conv_stride make a row", samples);
  if (c.hidden_size % c.num_heads != 0) json.fail("hidden_size is not a multiple of num_attention_heads");
  if (c.hidden_size % c.position_groups != 0)
    json.fail("hidden_size is not a multiple of num_conv_pos_embedding_groups");
  return c;
}

}  // namespace tessera::models::wav2vec
