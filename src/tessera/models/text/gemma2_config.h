#pragma once
// Sizes of Gemma 2's decoder stack.
//
//   gemma2::Config config = gemma2::parse_config(text, "text_encoder/config.json");
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::models::gemma2 {

/// Defaults are those of Gemma 2 2B (2,614,341,888 parameters).
struct Config {
  int64_t vocab_size = 256000;
  int64_t dim = 2304;
  int64_t dim_ffn = 9216;
  int64_t num_layers = 26;
  int64_t num_heads = 8;
  int64_t num_kv_heads = 4;
  int64_t head_dim = 256;
  int64_t sliding_window = 4096;       ///< keys that a query of the layers 0, 2, 4, ... sees, itself among them
  double query_pre_attn_scalar = 256;  ///< scores are divided by its root
  double score_cap = 50;               ///< c in c * tanh(score / c)
  double rope_theta = 10000;
  double eps = 1e-6;
};

/// transformers' config.json. Throws UserError (input).
Config parse_config(std::string_view json, const std::string& file);

}  // namespace tessera::models::gemma2
