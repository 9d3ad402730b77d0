#pragma once
// HunyuanVideo-1.5's autoencoder, causal in time: 16x16 pixels and 4 frames to a latent cell of 32 channels.
//
//   Hunyuan15Vae vae(config, read, {.size = 256, .overlap = 32});
//   Tensor latent = vae.encode(pixels);                    // [3, 121, 480, 848] in [-1, 1] -> [32, 31, 30, 53]
//   Tensor video = vae.decode(latent);                     // and back, not clamped
//
// "AutoencoderKLConv3D" in Tencent's code, "AutoencoderKLHunyuanVideo15" in diffusers. Halving and doubling move pixels and
// frames into channels and back; beside each goes a shortcut of means or repetitions of neighbouring channels. The first
// frame of a clip has no partner, so that it changes its sides alone. All frames of a clip, or of a tile, are coded at
// once: tiles in time are not what the models were trained on.
#include "tessera/models/vae/hunyuan_configs.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::hunyuan15_vae {

std::vector<Layer> encoder_layers(const Config& config);
std::vector<Layer> decoder_layers(const Config& config);
std::vector<Parameter> parameters(const Config& config);

class Hunyuan15Vae final : public VideoVae {
 public:
  /// Throws UserError (usage) for tiles that are not multiples of a cell.
  Hunyuan15Vae(Config config, ReadWeight read, const Tiling& tiling);

  /// Frames must be 1 + 4n, height and width multiples of 16; throws UserError (usage) naming the nearest.
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

}  // namespace tessera::models::hunyuan15_vae
