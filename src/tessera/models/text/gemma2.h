#pragma once
// Gemma 2's decoder stack as a text encoder, forward only: the hidden states after its final norm. Causal attention with
// capped scores, of the last `sliding_window` keys in every other layer.
//
//   Gemma2 encoder(preset);
//   net::Batch batch = encoder.pack({{2, 371, 321}});                  // ids with <bos>, unpadded
//   Tensor hidden = net::run_plain(encoder.units(), weights, batch);   // [3, dim]
//
// Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size", 2024; the numbers are those of
// transformers' Gemma2Model with eager attention (kernels without the cap give others).
#include "tessera/net/text_encoder.h"

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
const std::vector<std::pair<std::string, Config>>& presets();

class Gemma2 final : public net::TextEncoder {
 public:
  explicit Gemma2(const Config& config);

  const std::vector<std::unique_ptr<net::Unit>>& units() const override { return units_; }
  /// Rows behind padding are not needed: attention is causal and padding is on the right.
  net::Batch pack(const std::vector<std::vector<int64_t>>& ids) const override;
  int64_t dim() const override { return config_.dim; }
  int64_t vocabulary() const override { return config_.vocab_size; }
  std::string fingerprint() const override;
  std::string foreign_name(const std::string& name, const std::string&) const override { return name; }
  void initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) const override;

  const Config& config() const { return config_; }

 private:
  const Config config_;
  std::vector<std::unique_ptr<net::Unit>> units_;
};

}  // namespace tessera::models::gemma2
