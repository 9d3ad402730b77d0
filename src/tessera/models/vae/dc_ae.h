#pragma once
// The layers of DC-AE, of pictures and of clips (Open-Sora 2.0's): the same blocks, under the names that their files have,
// with convolutions of two sides or of three.
//
//   std::vector<Layer> encoder = dc_ae::encoder_layers({.stages = ..., .latent_channels = 32, .head_dim = 32, .clips = false});
#include "tessera/models/vae/dc_ae_config.h"
#include "tessera/models/vae/layer_runner.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::dc_ae {

/// Half of a network.
struct Half {
  std::vector<Stage> stages;  ///< from full resolution down
  int64_t latent_channels, head_dim;
  bool clips;  ///< of frames that see one another, under the names of efficientvit; else of pictures, diffusers' names
};

std::vector<Layer> encoder_layers(const Half& half);  ///< [3, ..] to [latent_channels, ..]
std::vector<Layer> decoder_layers(const Half& half);  ///< and back

}  // namespace tessera::models::dc_ae

// DC-AE: 32x32 pixels of a picture to a latent cell, without a distribution. A clip is coded frame by frame.
//
//   DcAe vae(config, read, {.size = 512, .overlap = 64});
//   Tensor latent = vae.encode(pixels);                     // [3, F, 1024, 1024] in [-1, 1] -> [32, F, 32, 32]
//   Tensor picture = vae.decode(latent);                    // and back, not clamped
//
// Chen et al., "Deep Compression Autoencoder for Efficient High-Resolution Diffusion Models", 2024; the numbers are
// those of diffusers' AutoencoderDC.

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

namespace tessera::models::dc_ae_video {

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

std::vector<Layer> encoder_layers(const Config& config);  ///< [3, ..] to [latent_channels, ..]
std::vector<Layer> decoder_layers(const Config& config);  ///< and back
std::vector<Parameter> parameters(const Config& config);  ///< under the names of the release

class DcAeVideo final : public VideoVae {
 public:
  /// Clips longer than a tile are cut in time, and each tile, where it is larger than one, in height and width. Throws
  /// UserError (usage) for tiles that are not multiples of 32 pixels and 4 frames.
  DcAeVideo(Config config, ReadWeight read, const Tiling& tiling);

  /// Throws UserError (usage) naming the nearest for frames that do not come back when they are decoded, or where height
  /// or width are no multiples of 32. encode() takes 1 frame or any multiple of 4, but decode() gives those of
  /// latent_shape() alone.
  std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const override;
  int64_t encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;
  int64_t decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const override;

  const Config& config() const { return config_; }

 private:
  Tensor moments(const Tensor& pixels, LayerRunner& run) const override;
  Tensor pixels(const Tensor& unscaled, LayerRunner& run) const override;
  bool cut_in_time(int64_t latent_frames) const { return time_tiles_.size > 0 && latent_frames > time_tiles_.size; }
  int64_t tile_frames(int64_t f) const { return cut_in_time(f) ? time_tiles_.size : f; }
  // Of so many latent frames, decoded without tiles and with them.
  int64_t shown(int64_t latent_frames) const { return latent_frames == 1 ? 1 : latent_frames * config_.time_stride(); }
  int64_t frames_of(int64_t latent_frames) const;
  // Bytes of stitching tiles of a latent of f frames, of which a tile's have `tile` numbers a cell, all have `all`, and
  // those that neighbours in time share have `shared`.
  int64_t stitching(const std::array<int64_t, 4>& latent, int64_t tile, int64_t all, int64_t shared) const;

  const Config config_;
  const std::vector<Layer> encoder_, decoder_;
};

AutoencoderMake autoencoder();  ///< its row of the registry

}  // namespace tessera::models::dc_ae_video
