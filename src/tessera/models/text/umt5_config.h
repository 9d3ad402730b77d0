#pragma once
// Sizes of the UMT5 encoder and of T5 1.1's.
//
//   umt5::Config config = umt5::parse_config(text, "text_encoder/config.json");
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::models::umt5 {

struct Config {
  int64_t vocab_size = 256384;
  int64_t dim = 4096;
  int64_t dim_attn = 4096;  ///< width of all heads together
  int64_t dim_ffn = 10240;
  int64_t num_heads = 64;
  int64_t num_layers = 24;
  int64_t num_buckets = 32;
  int64_t max_distance = 128;
  double eps = 1e-6;
  bool shared_positions = false;  ///< T5: one table for all layers
};

/// The native config.json (T5Encoder) or transformers' (UMT5EncoderModel, T5EncoderModel). Throws UserError (input).
Config parse_config(std::string_view json, const std::string& file);

}  // namespace tessera::models::umt5
