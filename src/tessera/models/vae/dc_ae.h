#pragma once
// DC-AE: 32x32 pixels of a picture to a latent cell, without a distribution. A clip is coded frame by frame.
//
//   DcAe vae(config, read, {.size = 512, .overlap = 64});
//   Tensor latent = vae.encode(pixels);                     // [3, F, 1024, 1024] in [-1, 1] -> [32, F, 32, 32]
//   Tensor picture = vae.decode(latent);                    // and back, not clamped
//
// Chen et al., "Deep Compression Autoencoder for Efficient High-Resolution Diffusion Models", 2024; the numbers are
// those of diffusers' AutoencoderDC.
#include "tessera/models/vae/dc_ae_config.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::dc_ae {

std::vector<Parameter> parameters(const Config& config);  ///< under diffusers' names

class DcAe final : public VideoVae {
 public:
  /// Frames larger than a tile are cut into tiles, which follow one another at its side less the overlap. Throws
  /// UserError (usage) for tiles that are not multiples of 32.
  DcAe(Config config, ReadWeight read, const Tiling& tiling);

  /// Height and width must be multiples of 32; throws UserError (usage) naming the nearest.
  std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const override;
  int64_t encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;
  int64_t decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;

  const Config& config() const { return config_; }

 private:
  Tensor moments(const Tensor& pixels, LayerRunner& run) const override;
  Tensor pixels(const Tensor& unscaled, LayerRunner& run) const override;

  const Config config_;
  const std::vector<Layer> encoder_, decoder_;
};

AutoencoderMake autoencoder();  ///< its row of the registry

}  // namespace tessera::models::dc_ae
