#pragma once
// The image tower of CLIP as units: what image-to-video models of Wan 2.1 see of a picture. It never trains.
//
//   ClipVision tower(config);
//   Tensor pixels = tower.preprocess(picture);                                  // [3, S, S] from [3, H, W] in [-1, 1]
//   Tensor features = net::run_plain(tower.units(), weights, tower.pack({pixels}));   // [1 + patches, dim]
//
// The features are what the last block but one leaves, without a norm: the class token first, then the patches.
#include "tessera/models/clip/config.h"
#include "tessera/net/model.h"

namespace tessera::models::clip {

class ClipVision {
 public:
  /// `last_block`: with the block that the features leave out (for verification).
  explicit ClipVision(const Config& config, bool last_block = false);

  const Config& config() const { return config_; }
  const std::vector<std::unique_ptr<net::Unit>>& units() const { return units_; }
  /// Bicubic to the square whatever the aspect, then the statistics of its training data: as the official code has it.
  at::Tensor preprocess(const at::Tensor& picture) const;
  /// Pictures of preprocess(), one after the other; rows() of the result belong to each.
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

/// Tensors of another naming ("official", "hf") that one official tensor is made of, one after the other: of "hf",
/// queries, keys and values are three. hf names have no "vision_model." in front.
std::vector<std::string> stored_parts(const std::string& official, const std::string& naming);

}  // namespace tessera::models::clip
