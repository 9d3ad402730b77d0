#pragma once
// The video DC-AE of Open-Sora 2.0: 32x32 pixels and 4 frames to a latent cell of 128 channels, without a distribution.
//
//   DcAeVideo vae(config, read, {.size = 256, .overlap = 64, .frames = 32, .shared_frames = 8});
//   Tensor latent = vae.encode(pixels);                     // [3, 128, 256, 256] in [-1, 1] -> [128, 32, 8, 8]
//   Tensor video = vae.decode(latent);                      // and back, not clamped
//
// Peng et al., "Open-Sora 2.0: Training a Commercial-Level Video Generation Model in $200k", 2025.
//
// [Note: not causal] All frames of a clip, or of a tile in time, see one another. Frames come in fours; one alone is a
// picture, and so is one latent frame: a clip of four does not come back, nor the last four of one whose last tile in
// time has no others.
#include "tessera/models/vae/dc_ae_video_pass.h"
#include "tessera/models/vae/tiles.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::dc_ae_video {

/// A quarter of the tile, in whole cells of 32 pixels.
int64_t usual_overlap(int64_t tile);

class DcAeVideo final : public VideoVae {
 public:
  /// Calls `read` for every tensor of parameters(config) each time that it needs the weights and has not loaded them.
  /// Clips longer than a tile are cut in time, and each tile, where it is larger than one, in height and width. Throws
  /// UserError (usage) for tiles that are not multiples of 32 pixels and 4 frames.
  DcAeVideo(Config config, ReadWeight read, const Tiling& tiling);

  std::string fingerprint() const override;
  /// Throws UserError (usage) naming the nearest for frames that do not come back when they are decoded, or where height
  /// or width are no multiples of 32.
  std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const override;
  /// [3, F, H, W] -> [C, f, h, w], divided by the scaling factor; of 1 frame or any multiple of 4, but decode() gives those
  /// of latent_shape() alone.
  Tensor encode(const Tensor& pixels) const override;
  Tensor decode(const Tensor& latent) const override;        ///< and back, not clamped
  Posterior posterior(const Tensor& pixels) const override;  ///< unscaled latents; no variance
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
  bool cut_in_time(int64_t latent_frames) const { return time_tiles_.size > 0 && latent_frames > time_tiles_.size; }
  std::vector<Part> time_parts(int64_t latent_frames) const;
  // Of so many latent frames, decoded without tiles and with them.
  int64_t shown(int64_t latent_frames) const { return latent_frames == 1 ? 1 : latent_frames * config_.time_stride(); }
  int64_t frames_of(int64_t latent_frames) const;
  // Latents, unscaled, of a clip, and back; tiled.
  Tensor latents(const Tensor& pixels) const;
  Tensor pixels(const Tensor& unscaled) const;
  // Bytes of a tiled pass over a latent of f frames, h x w cells: that over one tile, which `pass` counts, with `numbers`
  // for a cell of a result of so many latent frames, of which neighbours in time share `shared`.
  int64_t tiled_bytes(const std::array<int64_t, 3>& fhw, const std::function<int64_t(int64_t f)>& numbers,
                      int64_t shared, const std::function<int64_t(int64_t f, int64_t h, int64_t w)>& pass) const;

  const Config config_;
  const WeightsOnDemand weights_;
  const TileGrid tiles_;            // in latent cells
  const StitchedTiles time_tiles_;  // in latent frames
  const std::vector<Layer> encoder_, decoder_;
  const Tensor mean_, std_;          // [C]
  mutable std::string fingerprint_;  // once known
};

AutoencoderMake autoencoder();

}  // namespace tessera::models::dc_ae_video
