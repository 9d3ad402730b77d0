#pragma once
// Open-Sora 1.3's autoencoder: 8x8 pixels and 4 frames to a latent cell of 16 channels, in pieces of 17 frames to 5.
//
//   OpenSoraVae13 vae(config, read, {});
//   Tensor latent = vae.encode(pixels);                    // [3, 113, 360, 640] in [-1, 1] -> [16, 35, 45, 80]
//   Tensor video = vae.decode(latent);                     // and back, not clamped
//
// The code is that of Open-Sora 1.3 (2025). Its trainer draws latents from the distribution; here they are its means, as
// with the other autoencoders.
//
// [Note: shared frames] Where pieces overlap, each begins with the last frame of the one before, which has latents in
// both: a clip of 16 k + 1 frames has 5 k latent frames. Decoded, such a frame is the mean of its two pictures.
#include "tessera/models/vae/opensora_configs.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::opensora13_vae {

std::vector<Parameter> parameters(const Config& config);

class OpenSoraVae13 final : public VideoVae {
 public:
  /// Frames that are larger than a tile are cut in height and width. Throws UserError (usage) for tiles that are not
  /// multiples of 8 pixels.
  OpenSoraVae13(Config config, ReadWeight read, const Tiling& tiling);

  /// Throws UserError (usage) naming the nearest for frames that do not come back when they are decoded, or where height
  /// or width are less than 8. encode() takes any number of frames, but decode() gives those of latent_shape() alone.
  std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const override;
  int64_t overlapping_piece() const override {
    return config_.overlap && config_.piece > 0 ? config_.latent_piece() : 0;
  }
  int64_t encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;
  int64_t decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;

  const Config& config() const { return config_; }

 private:
  std::vector<Part> pieces(int64_t frames) const;                // of a clip; neighbours may share a frame
  std::vector<Part> latent_pieces(int64_t latent_frames) const;  // share none
  int64_t latent_frames(int64_t frames) const;
  int64_t frames_of(int64_t latent_frames) const;
  Tensor moments(const Tensor& pixels, LayerRunner& run) const override;
  Tensor pixels(const Tensor& unscaled, LayerRunner& run) const override;
  Tensor decoded(const Tensor& unscaled, LayerRunner& run) const;  // of a tile

  const Config config_;
  const std::vector<Layer> encoder_, decoder_;
};

AutoencoderMake autoencoder();  ///< its row of the registry

}  // namespace tessera::models::opensora13_vae
