#pragma once
// Sizes of the text tower of CLIP.
//
//   clip_text::Config config = clip_text::parse_config(text, "text_encoder_2/config.json");
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::models::clip_text {

struct Config {
  int64_t vocab_size = 49408;
  int64_t dim = 768;
  int64_t dim_ffn = 3072;
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  int64_t most_tokens = 77;
  int64_t eos = 2;  ///< 2, which older configs have for every vocabulary: the row of the largest id is pooled
  double eps = 1e-5;
};

/// transformers' config.json (CLIPTextModel). Throws UserError (input).
Config parse_config(std::string_view json, const std::string& file);

}  // namespace tessera::models::clip_text
