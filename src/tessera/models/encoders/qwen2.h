#pragma once
// The text part of Qwen2.5-VL as a text encoder, forward only: a decoder stack whose hidden states two layers before the end
// are a prompt's, without the final norm. No picture reaches it, so that its three rows of positions are one.
//
//   Qwen2 encoder(preset);
//   net::Batch batch = encoder.pack({{151644, 8948, 198}});            // ids of a conversation, unpadded
//   Tensor hidden = net::run_plain(encoder.units(), weights, batch);   // [3, dim]
//
// Qwen Team, "Qwen2.5-VL Technical Report", 2025; the numbers are those of transformers' Qwen2_5_VLTextModel.
#include "tessera/models/common/family.h"
#include "tessera/models/encoders/configs.h"
#include "tessera/net/encoders.h"

namespace tessera::models::qwen2 {

const std::vector<std::pair<std::string, Config>>& presets();

class Qwen2 final : public net::TextEncoder {
 public:
  /// `whole`: with the last layers and the final norm, which prompts do not go through (for verification).
  explicit Qwen2(const Config& config, bool whole = false);

  const std::vector<std::unique_ptr<net::Unit>>& units() const override { return units_; }
  /// Rows behind padding are not needed: attention is causal and padding is on the right.
  net::Batch pack(const std::vector<std::vector<int64_t>>& ids) const override;
  int64_t dim() const override { return config_.dim; }
  int64_t vocabulary() const override { return config_.vocab_size; }
  std::string fingerprint() const override;
  std::string foreign_name(const std::string& name, const std::string&) const override { return name; }
  void initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) const override;

 private:
  const Config config_;
  std::vector<std::unique_ptr<net::Unit>> units_;
};

TextEncoderMake text_encoder();

}  // namespace tessera::models::qwen2
