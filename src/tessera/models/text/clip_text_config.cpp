#include "tessera/models/text/clip_text_config.h"

#include "tessera/models/common/config_reader.h"

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
  c.eps = json.real("layer_norm_eps", c.eps);
  if (c.dim % c.num_heads != 0)
    json.fail("hidden_size " + std::to_string(c.dim) + " is not a multiple of num_attention_heads " +
              std::to_string(c.num_heads));
  return c;
}

}  // namespace tessera::models::clip_text
