#pragma once
// The UMT5 encoder, forward only: T5 1.1 (Raffel et al. 2020, with a gated GELU) with a table of relative positions in
// every layer; and T5 1.1 itself, whose layers share that of the first; and byT5, which is T5 1.1 over bytes.
//
//   Umt5 encoder(preset);
//   net::Batch batch = encoder.pack({{17, 402, 1}});          // ids with the end token, unpadded
//   Tensor hidden = net::run_plain(encoder.units(), weights, batch);   // [3, dim]
#include "tessera/models/common/family.h"
#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/encoders/configs.h"
#include "tessera/net/encoders.h"

namespace tessera::models::umt5 {

const std::vector<std::pair<std::string, Config>>& presets();
const std::vector<std::pair<std::string, Config>>& t5_presets();
const std::vector<std::pair<std::string, Config>>& byt5_presets();

/// Bucket of key - query for every pair of n tokens: [n * n] int64, on the device of `like`.
at::Tensor relative_buckets(int64_t n, const Config& config, const at::Tensor& like);

class Umt5 final : public net::TextEncoder {
 public:
  explicit Umt5(const Config& config);

  const std::vector<std::unique_ptr<net::Unit>>& units() const override { return units_; }
  net::Batch pack(const std::vector<std::vector<int64_t>>& ids) const override;
  /// Padded prompts, ids and mask [B, L] int64, as the reference runs them: keys with mask 0 are masked, rows with mask
  /// 0 are computed like others. Rows with mask 1 equal those of pack().
  net::Batch pack_padded(const at::Tensor& ids, const at::Tensor& mask) const;
  int64_t dim() const override { return config_.dim; }
  int64_t vocabulary() const override { return config_.vocab_size; }
  std::string fingerprint() const override;
  std::string foreign_name(const std::string& name, const std::string& naming) const override;
  void initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) const override;

  const Config& config() const { return config_; }

 private:
  const Config config_;
  std::vector<std::unique_ptr<net::Unit>> units_;
};

const std::vector<NamePattern>& hf_names();
/// Those of transformers' encoder alone, as files of another program that has it as a part.
const KeyMap& encoder_names();

WeightForm weight_form();
WeightForm t5_weight_form();

TextEncoderMake text_encoder();
/// T5 1.1, whose layers share a table of positions.
TextEncoderMake t5_text_encoder();
/// byT5 with the tokens of colours and fonts that Glyph-SDXL-v2 adds.
TextEncoderMake byt5_text_encoder();

}  // namespace tessera::models::umt5
