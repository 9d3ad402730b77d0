#include "tessera/models/text/umt5_config.h"

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
    c.eps = json.real("layer_norm_epsilon", c.eps);
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
