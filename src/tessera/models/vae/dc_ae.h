#pragma once
// DC-AE: 32x32 pixels of a picture to a latent cell, without a distribution. A clip is coded frame by frame.
//
//   DcAe vae(config, read, {.size = 512, .overlap = 64});
//   Tensor latent = vae.encode(pixels);                     // [3, F, 1024, 1024] in [-1, 1] -> [32, F, 32, 32]
//   Tensor picture = vae.decode(latent);                    // and back, not clamped
//
// Chen et al., "Deep Compression Autoencoder for Efficient High-Resolution Diffusion Models", 2024; the numbers are
// those of diffusers' AutoencoderDC.
#include "tessera/models/vae/dc_ae_pass.h"
#include "tessera/models/vae/tiles.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::dc_ae {

/// Pixels that neighbouring tiles share where the caller does not say: 64 for tiles of 512.
int64_t usual_overlap(int64_t tile);

class DcAe final : public VideoVae {
 public:
  /// Calls `read` for every tensor of parameters(config) each time that it needs the weights and has not loaded them.
  /// Frames larger than a tile are cut into tiles, which follow one another at its side less the overlap. Throws
  /// UserError (usage) for tiles that are not multiples of 32.
  DcAe(Config config, ReadWeight read, const Tiling& tiling);

  std::string fingerprint() const override;
  /// Height and width must be multiples of 32; throws UserError (usage) naming the nearest.
  std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const override;
  Tensor encode(const Tensor& pixels) const override;        ///< [3, F, H, W] -> [C, F, h, w], times the scaling factor
  Tensor decode(const Tensor& latent) const override;        ///< and back, not clamped
  Posterior posterior(const Tensor& pixels) const override;  ///< unscaled latents; no variance
  const Tensor& latent_mean() const override { return mean_; }
  const Tensor& latent_std() const override { return std_; }
  int64_t weight_bytes() const override { return weights_.bytes(); }
  void release() const override { weights_.release(); }
  int64_t encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;
  int64_t decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;
  plan::UnitWork encode_work(int64_t frames, int64_t height, int64_t width) const override;

  const Config& config() const { return config_; }

 private:
  // One frame, unscaled, tiled: [3, H, W] -> [C, h, w] and back.
  Tensor encode_frame(const Tensor& pixels, const net::WeightMap& weights) const;
  Tensor decode_frame(const Tensor& latent, const net::WeightMap& weights) const;

  const Config config_;
  const WeightsOnDemand weights_;
  const TileGrid tiles_;  // in latent cells
  const std::vector<Layer> encoder_, decoder_;
  const Tensor mean_, std_;          // [C]
  mutable std::string fingerprint_;  // once known
};

AutoencoderMake autoencoder();

}  // namespace tessera::models::dc_ae
