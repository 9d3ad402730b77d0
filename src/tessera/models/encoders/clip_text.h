#pragma once
// The text tower of CLIP (Radford et al. 2021), forward only: causal attention, layer norms before each part, one after the
// last block. Its pooled output is the row of the end token.
//
//   ClipText encoder(preset);
//   net::Batch batch = encoder.pack({{49406, 320, 2368, 49407}});                // unpadded: later tokens change nothing
//   Tensor hidden = net::run_plain(encoder.units(), weights, batch);            // [4, dim]
//   Tensor pooled = hidden[encoder.pooled_row(ids)];
#include "tessera/models/common/family.h"
#include "tessera/models/encoders/configs.h"
#include "tessera/net/encoders.h"

namespace tessera::models::clip_text {

/// "clip-l" is the released one, "clip-text-demo" a tiny one for runs without weights, with the end token that tokenizers
/// made from captions have.
const std::vector<std::pair<std::string, Config>>& presets();

class ClipText final : public net::TextEncoder {
 public:
  explicit ClipText(const Config& config);

  const std::vector<std::unique_ptr<net::Unit>>& units() const override { return units_; }
  /// Throws UserError (input) for prompts of more than most_tokens().
  net::Batch pack(const std::vector<std::vector<int64_t>>& ids) const override;
  int64_t dim() const override { return config_.dim; }
  int64_t vocabulary() const override { return config_.vocab_size; }
  int64_t most_tokens() const override { return config_.most_tokens; }
  int64_t pooled_row(const std::vector<int64_t>& ids) const override;
  std::string fingerprint() const override;
  std::string foreign_name(const std::string& name, const std::string&) const override { return name; }
  void initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) const override;

  const Config& config() const { return config_; }

 private:
  const Config config_;
  std::vector<std::unique_ptr<net::Unit>> units_;
};

TextEncoderMake text_encoder();

}  // namespace tessera::models::clip_text
