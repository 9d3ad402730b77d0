#pragma once
// The autoencoders of Wan, causal in time: of Wan 2.1 (8x8 pixels and 4 frames to a latent cell of 16 channels; also
// used by Wan 2.2's A14B and S2V) and of Wan 2.2 (TI2V-5B: 16x16 pixels and 4 frames to 48 channels).
//
//   WanVae vae(config, read, {.size = 256, .overlap = 64});
//   Tensor latent = vae.encode(pixels);                    // [3, 81, 480, 832] in [-1, 1] -> [16, 21, 60, 104]
//   Tensor video = vae.decode(latent);                     // and back, not clamped
//
//   FeatureCache cache;                                    // or chunk by chunk
//   Tensor first = vae.encode_chunk(pixels.narrow(1, 0, 1), cache);
//   Tensor next = vae.encode_chunk(pixels.narrow(1, 1, 4), cache);
#include "tessera/models/vae/video_vae.h"
#include "tessera/models/vae/wan_pass.h"

namespace tessera::models::wan_vae {

class WanVae final : public VideoVae {
 public:
  /// Calls `read` for every tensor of parameters(config) each time that it needs the weights and has not loaded them.
  /// With a tiling, height and width are cut into tiles that are encoded and decoded one after the other. Throws
  /// UserError (usage) for tiles that are not multiples of the stride.
  WanVae(Config config, ReadWeight read, const Tiling& tiling);

  std::string fingerprint() const override;
  /// Frames must be 1 + 4n, height and width multiples of 8 (2.2: 16); throws UserError (usage) naming the nearest.
  std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const override;
  Tensor encode(const Tensor& pixels) const override;  ///< [3, F, H, W] -> [C, f, h, w], scaled
  Tensor decode(const Tensor& latent) const override;  ///< scaled latent -> [3, F, H, W], not clamped
  Posterior posterior(const Tensor& pixels) const override;
  const Tensor& latent_mean() const override { return mean_; }
  const Tensor& latent_std() const override { return std_; }
  int64_t weight_bytes() const override { return weights_.bytes(); }
  void release() const override { weights_.release(); }
  int64_t encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;
  int64_t decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;
  plan::UnitWork encode_work(int64_t frames, int64_t height, int64_t width) const override;

  /// Encodes the first frame, then four at a time: [3, 1 or 4, H, W] -> mean and log variance, [2C, 1, h, w], unscaled.
  Tensor encode_chunk(const Tensor& pixels, FeatureCache& cache) const;
  /// Decodes one latent frame, unscaled: [C, 1, h, w] -> [3, 1, H, W] for the first, [3, 4, H, W] for later ones.
  Tensor decode_chunk(const Tensor& latent, FeatureCache& cache) const;
  /// Bytes of one chunk of frames of this size, untiled.
  ChunkBytes encode_chunk_bytes(int64_t height, int64_t width, const CountBytes& count) const;
  ChunkBytes decode_chunk_bytes(int64_t height, int64_t width, const CountBytes& count) const;

  const Config& config() const { return config_; }

 private:
  Tensor moments(const Tensor& pixels) const;
  Tensor encode_tile(const Tensor& pixels) const;
  Tensor decode_tile(const Tensor& latent) const;

  const Config config_;
  const WeightsOnDemand weights_;
  const Tiling tiling_;
  const std::vector<Layer> encoder_, decoder_;
  const Tensor mean_, std_;          // [C]
  mutable std::string fingerprint_;  // once known
};

AutoencoderMake autoencoder();

}  // namespace tessera::models::wan_vae
