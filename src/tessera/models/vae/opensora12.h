#pragma once
// Open-Sora 1.2's autoencoder: 8x8 pixels and 4 frames to a latent cell of 4 channels, in pieces of 17 frames to 5.
//
//   OpenSoraVae12 vae(config, read, {});
//   Tensor latent = vae.encode(pixels);                    // [3, 51, 240, 432] in [-1, 1] -> [4, 15, 30, 54]
//   Tensor video = vae.decode(latent);                     // and back, not clamped
//
// Zheng et al., "Open-Sora: Democratizing Efficient Video Production for All", 2024. The trainer draws latents from both
// distributions; here they are the means, as with the other autoencoders.
//
// [Note: pieces] A piece is coded alone: memory does not grow with the clip. Where a piece has no multiple of 4 frames,
// zeros are put in front of its latents, and decoding leaves so many frames out. A latent does not tell how many: a
// clip has 17 n frames, or 17 n and a multiple of 4; one latent frame is a picture.
#include "tessera/models/vae/opensora_configs.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::opensora12_vae {

std::vector<Parameter> parameters(const Config& config);

class OpenSoraVae12 final : public TwoStageVae {
 public:
  /// Frames that are larger than a tile are cut in height and width. Throws UserError (usage) for tiles that are not
  /// multiples of 8 pixels.
  OpenSoraVae12(Config config, ReadWeight read, const Tiling& tiling);

  /// Throws UserError (usage) naming the nearest where a latent would not tell the frames, or height or width are
  /// less than 8. encode() takes any number of frames, but decode() gives those of latent_shape() alone.
  std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const override;
  int64_t encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;
  int64_t decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;

  // Any number of frames, untiled.
  Tensor picture_moments(const Tensor& pixels) const override;
  double picture_factor() const override { return config_.factor; }
  Tensor time_moments(const Tensor& pictures) const override;
  Tensor decode_frames(const Tensor& latent, int64_t frames) const override;

  const Config& config() const { return config_; }

 private:
  /// Of so many frames.
  std::vector<Part> pieces(int64_t frames) const;
  int64_t latent_frames(int64_t frames) const;
  int64_t frames_of(int64_t latent_frames) const;  ///< the inverse, of frames that latent_shape() takes

  /// A piece [3, n, H, W] to moments [2C, ceil(n / 4), h, w], and a latent [C, m, h, w], unscaled, to its last frames,
  /// which `store` gets one by one.
  Tensor encode_piece(const Tensor& pixels, LayerRunner& run) const;
  Tensor time_piece(const Tensor& pictures, LayerRunner& run) const;
  void decode_piece(const Tensor& latent, int64_t frames, LayerRunner& run,
                    const std::function<void(int64_t i, const Tensor& frame)>& store) const;

  Tensor moments(const Tensor& pixels, LayerRunner& run) const override;
  Tensor pixels(const Tensor& unscaled, LayerRunner& run) const override;
  Tensor decoded(const Tensor& unscaled, int64_t frames, LayerRunner& run) const;

  const Config config_;
  const std::vector<Layer> picture_encoder_, picture_decoder_, time_encoder_, time_decoder_;
};

AutoencoderMake autoencoder();  ///< its row of the registry

}  // namespace tessera::models::opensora12_vae
