#include "tessera/models/text/gemma2_config.h"

#include "tessera/models/common/config_reader.h"

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
  c.eps = json.real("rms_norm_eps", c.eps);
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
