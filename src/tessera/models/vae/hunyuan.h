#pragma once
// HunyuanVideo's autoencoder, causal in time: 8x8 pixels and 4 frames to a latent cell of 16 channels.
//
//   HunyuanVae vae(config, read, {.size = 256, .overlap = 64, .frames = 64, .shared_frames = 16});
//   Tensor latent = vae.encode(pixels);                    // [3, 129, 256, 256] in [-1, 1] -> [16, 33, 32, 32]
//   Tensor video = vae.decode(latent);                     // and back, not clamped
//
// Kong et al., "HunyuanVideo: A Systematic Framework For Large Video Generative Models", 2024; the numbers are those of
// diffusers' AutoencoderKLHunyuanVideo and of Open-Sora 2.0.
//
// [Note: all frames at once] Norms are over all frames of a clip, so that its frames lie in memory together, and a first
// frame alone has another latent than in front of others. Tiles in time bound the memory; each is normalised on its own.
#include "tessera/models/vae/hunyuan_configs.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::hunyuan_vae {

/// The autoencoder of pictures that Stable Diffusion has, "AutoencoderKL" in diffusers; HunyuanVideo's is the same with
/// convolutions in time, and Open-Sora 1.2's has it for pictures.
struct KlForm {
  std::string prefix, conv;  ///< of names; after those of convolutions
  std::vector<int64_t> widths;
  int64_t layers, latent_channels;
  GroupNorm norm;
  bool in_time;  ///< 3x3x3 and causal, the second and third level halve time; else 3x3
};
std::vector<Layer> kl_encoder(const KlForm& form);  ///< [3, ..] to mean and log variance [2 * latent_channels, ..]
std::vector<Layer> kl_decoder(const KlForm& form);  ///< [latent_channels, ..] to [3, ..]

std::vector<Layer> encoder_layers(const Config& config);
std::vector<Layer> decoder_layers(const Config& config);
std::vector<Parameter> parameters(const Config& config);

class HunyuanVae final : public VideoVae {
 public:
  /// Clips longer than a tile are cut in time, and each tile, where it is larger than one, in height and width. Throws
  /// UserError (usage) for tiles that are not multiples of 8 pixels and 4 frames.
  HunyuanVae(Config config, ReadWeight read, const Tiling& tiling);

  /// Frames must be 1 + 4n, height and width multiples of 8; throws UserError (usage) naming the nearest.
  std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const override;
  int64_t encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;
  int64_t decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;

  const Config& config() const { return config_; }

 private:
  Tensor moments(const Tensor& pixels, LayerRunner& run) const override;
  Tensor pixels(const Tensor& unscaled, LayerRunner& run) const override;
  bool cut_in_time(int64_t groups) const { return time_tiles_.size > 0 && groups >= time_tiles_.size; }
  // Latent frames of a tile of a clip of f, and the bytes of stitching, for `numbers` a cell of the first frame and `later`
  // of each other one.
  int64_t tile_frames(int64_t f) const { return cut_in_time(f - 1) ? 1 + time_tiles_.size : f; }
  int64_t stitching(int64_t f, int64_t h, int64_t w, int64_t first, int64_t later) const;

  const Config config_;
  const std::vector<Layer> encoder_, decoder_;
};

AutoencoderMake autoencoder();  ///< its row of the registry

}  // namespace tessera::models::hunyuan_vae
