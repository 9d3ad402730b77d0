#pragma once
// The autoencoder of Wan 2.1 (also of Wan 2.2's A14B and S2V): 8x8 pixels and 4 frames to a latent cell, causal in
// time.
//
//   Wan21Vae vae(config, weights, {.size = 256, .overlap = 64});
//   Tensor latent = vae.encode(pixels);                    // [3, 81, 480, 832] in [-1, 1] -> [16, 21, 60, 104]
//   Tensor video = vae.decode(latent);                     // and back, not clamped
//
//   FeatureCache cache;                                    // or by chunks, for clips that come piece by piece
//   Tensor first = vae.encode_chunk(pixels.narrow(1, 0, 1), cache);
//   Tensor next = vae.encode_chunk(pixels.narrow(1, 1, 4), cache);
#include "tessera/models/vae/wan21_pass.h"

namespace tessera::models::wan21 {

class Wan21Vae final : public VideoVae {
 public:
  /// `weights`: every tensor of parameters(config), fp32. With a tiling, height and width are cut into tiles that are
  /// encoded and decoded one after the other. Throws UserError (usage) for tiles that are not multiples of the stride.
  Wan21Vae(Config config, net::WeightMap weights, const Tiling& tiling);

  std::string fingerprint() const override;
  /// Frames must be 1 + 4n, height and width multiples of 8; throws UserError (input) naming the nearest that are.
  std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const override;
  Tensor encode(const Tensor& pixels) const override;  ///< [3, F, H, W] in [-1, 1] -> [C, f, h, w], scaled
  Tensor decode(const Tensor& latent) const override;  ///< scaled latent -> [3, F, H, W], not clamped
  Posterior posterior(const Tensor& pixels) const override;
  const Tensor& latent_mean() const override { return mean_; }
  const Tensor& latent_std() const override { return std_; }
  int64_t encode_bytes(int64_t frames, int64_t height, int64_t width) const override;
  int64_t decode_bytes(int64_t frames, int64_t height, int64_t width) const override;

  /// The first frame, then four at a time: [3, 1 or 4, H, W] -> mean and log variance, [2C, 1, h, w], unscaled.
  Tensor encode_chunk(const Tensor& pixels, FeatureCache& cache) const;
  /// One latent frame, unscaled: [C, 1, h, w] -> [3, 1, H, W] for the first, [3, 4, H, W] for those after it.
  Tensor decode_chunk(const Tensor& latent, FeatureCache& cache) const;
  ChunkBytes encode_chunk_bytes(int64_t height, int64_t width) const;  ///< of pixels
  ChunkBytes decode_chunk_bytes(int64_t height, int64_t width) const;

  const Config& config() const { return config_; }

 private:
  Tensor moments(const Tensor& pixels) const;
  Tensor encode_tile(const Tensor& pixels) const;
  Tensor decode_tile(const Tensor& latent) const;

  const Config config_;
  const net::WeightMap weights_;
  const Tiling tiling_;
  const std::vector<Layer> encoder_, decoder_;
  const Tensor mean_, std_;  // [C]
};

}  // namespace tessera::models::wan21
