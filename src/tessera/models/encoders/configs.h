#pragma once
// Sizes of the encoders of captions, pictures and speech, and their config.json.
//
//   umt5::Config config = umt5::parse_config(text, "text_encoder/config.json");
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

namespace tessera::models::qwen2 {

/// Defaults are those of Qwen2.5-VL 7B's text part (7,070,619,136 parameters).
struct Config {
  int64_t vocab_size = 152064;
  int64_t dim = 3584;
  int64_t dim_ffn = 18944;
  int64_t num_layers = 28;
  int64_t num_heads = 28;
  int64_t num_kv_heads = 4;
  double rope_theta = 1e6;
  double eps = 1e-6;

  int64_t head_dim() const { return dim / num_heads; }
};

/// transformers' config.json, of the text part or with it inside. Throws UserError (input).
Config parse_config(std::string_view json, const std::string& file);

}  // namespace tessera::models::qwen2

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

namespace tessera::models::clip {

struct Config {
  int64_t image_size = 224;  ///< pixels a side
  int64_t patch = 14;
  int64_t dim = 1280;
  int64_t mlp_dim = 5120;
  int64_t num_heads = 16;
  int64_t num_layers = 32;
  double eps = 1e-5;
  std::array<double, 3> mean = {0.48145466, 0.4578275, 0.40821073};
  std::array<double, 3> deviation = {0.26862954, 0.26130258, 0.27577711};

  /// SigLIP: no class token, no norm before the blocks and one behind all of them, the other GELU.
  bool siglip = false;

  int64_t side() const { return image_size / patch; }  ///< patches; what is left of a row is not seen
  int64_t patches() const { return side() * side(); }
  int64_t rows() const { return (siglip ? 0 : 1) + patches(); }
  bool operator==(const Config&) const = default;
};

/// Either form. Throws UserError (input) naming file and field, also for towers of another make.
Config parse_config(std::string_view json, const std::string& file);

/// From the shapes of the tensors under official names. The number of heads is that of the preset of this width, or one
/// for 80 channels, as no shape depends on it. Throws UserError (input) naming `file` if this is no CLIP image tower.
Config config_of(const std::map<std::string, std::vector<int64_t>>& official, const std::string& file);

/// "clip-vit-h" and "siglip-so400m" are released ones, "clip-demo" and "siglip-demo" tiny ones for runs without weights.
const std::vector<std::pair<std::string, Config>>& presets();

}  // namespace tessera::models::clip

namespace tessera::models::wav2vec {

struct Config {
  int64_t hidden_size = 1024;
  int64_t num_layers = 24;
  int64_t num_heads = 16;
  int64_t ffn_dim = 4096;
  std::vector<int64_t> conv_dim = std::vector<int64_t>(7, 512);
  std::vector<int64_t> conv_kernel = {10, 3, 3, 3, 3, 2, 2};
  std::vector<int64_t> conv_stride = {5, 2, 2, 2, 2, 2, 2};
  int64_t position_kernel = 128, position_groups = 16;
  double eps = 1e-5;

  int64_t states() const { return num_layers + 1; }
  /// The least number of samples that gives a row.
  int64_t shortest() const;
  bool operator==(const Config&) const = default;
};

/// transformers' config.json. Throws UserError (input) naming file and field, also for the base models' layout (group
/// norm, norms after the layers), which is another network.
Config parse_config(std::string_view json, const std::string& file);

}  // namespace tessera::models::wav2vec
