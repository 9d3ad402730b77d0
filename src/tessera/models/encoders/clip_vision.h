#pragma once
// The image tower of CLIP as units, the image encoder of Wan 2.1's image-to-video models. It is always frozen.
//
//   ClipVision tower(config);
//   Tensor pixels = tower.preprocess(picture);                                  // [3, S, S] from [3, H, W] in [-1, 1]
//   Tensor features = net::run_plain(tower.units(), weights, tower.pack({pixels}));   // [1 + patches, dim]
//
// The features are the output of the last block but one, without a norm: the class token first, then the patches.
#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/encoders/configs.h"
#include "tessera/net/model.h"

namespace tessera::models::clip {

class ClipVision {
 public:
  /// `last_block`: includes the last block, which the features do not need (for verification).
  explicit ClipVision(const Config& config, bool last_block = false);

  const Config& config() const { return config_; }
  const std::vector<std::unique_ptr<net::Unit>>& units() const { return units_; }
  /// Resizes to a square (bicubic, without keeping the aspect) and normalises by the statistics of CLIP's training
  /// data, as the official code does.
  at::Tensor preprocess(const at::Tensor& picture) const;
  /// Packs results of preprocess(), one after the other; each has rows() rows of the output.
  net::Batch pack(const std::vector<at::Tensor>& pixels) const;
  int64_t rows() const { return config_.rows(); }
  int64_t dim() const { return config_.dim; }
  /// Names the architecture and its sizes, part of cache keys.
  std::string fingerprint() const;
  /// Deterministic random values, for runs without pretrained weights.
  void initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) const;

 private:
  const Config config_;
  std::vector<std::unique_ptr<net::Unit>> units_;
};

/// The tensors of a naming ("official", "hf") that, one after the other, make up one official tensor: "hf" has three
/// for queries, keys and values. hf names have no "vision_model." in front.
std::vector<std::string> stored_parts(const std::string& official, const std::string& naming);

/// Official name -> name without "vision_model."; all but attn.to_qkv.
const std::vector<NamePattern>& hf_names();

WeightForm weight_form();

}  // namespace tessera::models::clip
