#pragma once
// The image towers of CLIP, the image encoder of Wan 2.1's image-to-video models, and of SigLIP (Zhai et al. 2023), that of
// HunyuanVideo-1.5's, as units. They are always frozen.
//
//   ClipVision tower(config);
//   Tensor pixels = tower.preprocess(picture);                                  // [3, S, S] from [3, H, W] in [-1, 1]
//   Tensor features = net::run_plain(tower.units(), weights, tower.pack({pixels}));   // [1 + patches, dim]
//
// CLIP's features are the output of the last block but one, without a norm: the class token first, then the patches.
// SigLIP's are those of the last block, normalised, of patches alone.
#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/encoders/configs.h"
#include "tessera/net/model.h"

namespace tessera::models::clip {

class ClipVision {
 public:
  /// `last_block`: includes the last block, which CLIP's features do not need (for verification).
  explicit ClipVision(const Config& config, bool last_block = false);

  const Config& config() const { return config_; }
  const std::vector<std::unique_ptr<net::Unit>>& units() const { return units_; }
  /// Resizes to a square (bicubic, without keeping the aspect) and normalises by the statistics of the tower's training
  /// data, as the official code does; for SigLIP that is squared() in [-1, 1].
  at::Tensor preprocess(const at::Tensor& picture) const;
  /// What SigLIP is shown: bytes [S, S, 3] of bytes [3, H, W], or of numbers (cut_to_bytes).
  at::Tensor squared(const at::Tensor& picture) const;
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

/// Numbers in [-1, 1] as bytes, cut and not rounded, as the training script of HunyuanVideo-1.5 has them.
at::Tensor cut_to_bytes(const at::Tensor& pixels);

/// The tensors of a naming ("official", "hf") that, one after the other, make up one official tensor: "hf" has three
/// for queries, keys and values. hf names have no "vision_model." in front.
std::vector<std::string> stored_parts(const std::string& official, const std::string& naming);

/// Official name -> name without "vision_model."; all but attn.to_qkv.
const std::vector<NamePattern>& hf_names();

WeightForm weight_form();
WeightForm siglip_weight_form();

}  // namespace tessera::models::clip
