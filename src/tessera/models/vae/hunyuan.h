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
#include "tessera/models/vae/hunyuan_pass.h"
#include "tessera/models/vae/tiles.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::hunyuan_vae {

/// A quarter of the tile, in whole cells of 8 pixels.
int64_t usual_overlap(int64_t tile);

class HunyuanVae final : public VideoVae {
 public:
  /// Calls `read` for every tensor of parameters(config) each time that it needs the weights and has not loaded them.
  /// Clips longer than a tile are cut in time, and each tile, where it is larger than one, in height and width. Throws
  /// UserError (usage) for tiles that are not multiples of 8 pixels and 4 frames.
  HunyuanVae(Config config, ReadWeight read, const Tiling& tiling);

  std::string fingerprint() const override;
  /// Frames must be 1 + 4n, height and width multiples of 8; throws UserError (usage) naming the nearest.
  std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const override;
  Tensor encode(const Tensor& pixels) const override;  ///< [3, F, H, W] -> [C, f, h, w], scaled
  Tensor decode(const Tensor& latent) const override;  ///< scaled latent -> [3, F, H, W], not clamped
  Posterior posterior(const Tensor& pixels) const override;
  const Tensor& latent_mean() const override { return mean_; }
  const Tensor& latent_std() const override { return std_; }
  bool tiles_in_time() const override { return true; }
  int64_t weight_bytes() const override { return weights_.bytes(); }
  void release() const override { weights_.release(); }
  int64_t encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;
  int64_t decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;
  plan::UnitWork encode_work(int64_t frames, int64_t height, int64_t width) const override;

  const Config& config() const { return config_; }

 private:
  // Mean and log variance of a clip, and the pixels of an unscaled latent; tiled.
  Tensor moments(const Tensor& pixels) const;
  Tensor pixels(const Tensor& unscaled) const;
  bool cut_in_time(int64_t groups) const { return time_tiles_.size > 0 && groups >= time_tiles_.size; }
  // Bytes of a tiled pass over a latent of f frames, h x w cells: that over one tile, which `pass` counts, and
  // `numbers` a cell of the result, with those of a first frame beside those of later ones.
  int64_t tiled_bytes(int64_t f, int64_t h, int64_t w, int64_t first, int64_t later,
                      const std::function<int64_t(int64_t f, int64_t h, int64_t w)>& pass) const;

  const Config config_;
  const WeightsOnDemand weights_;
  const TileGrid tiles_;            // in latent cells
  const StitchedTiles time_tiles_;  // in latent frames
  const std::vector<Layer> encoder_, decoder_;
  const Tensor mean_, std_;          // [C]
  mutable std::string fingerprint_;  // once known
};

AutoencoderMake autoencoder();

}  // namespace tessera::models::hunyuan_vae
