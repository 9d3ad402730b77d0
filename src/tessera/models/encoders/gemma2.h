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
#include "tessera/models/common/family.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/encoders/configs.h"
#include "tessera/net/encoders.h"

namespace tessera::models::gemma2 {

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

WeightForm weight_form();

TextEncoderMake text_encoder();

}  // namespace tessera::models::gemma2
