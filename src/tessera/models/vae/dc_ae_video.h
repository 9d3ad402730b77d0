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
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/vae/file_sizes.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::dc_ae_video {

/// The blocks of one resolution: residual blocks, or blocks of linear attention, of `width` channels.
struct Stage {
  int64_t width = 0, encoder_depth = 0, decoder_depth = 0;
  bool attention = false;
  bool halves_time = false;  ///< between it and the next
};

/// Defaults are those of the release (459,462,147 parameters).
struct Config {
  int64_t latent_channels = 128;
  int64_t head_dim = 32;
  /// From full resolution down; each has half the height and width of the one before.
  std::vector<Stage> stages = {
      {128, 2, 3}, {256, 2, 3}, {512, 2, 3}, {512, 3, 3, true, true}, {1024, 3, 3, true, true}, {1024, 3, 3, true}};
  double scaling_factor = 0.493;  ///< a denoiser's latents are those of the encoder divided by it

  int64_t stride() const { return int64_t{1} << (stages.size() - 1); }  ///< pixels of a latent cell along a side
  int64_t time_stride() const;                                          ///< frames of a latent frame
};

/// Everything but the scaling and where time is halved follows from the weights; these are those of the release. Throws
/// UserError (input) where they are of another architecture or not whole.
Config config_of_weights(const ShapeOf& shape, const std::string& file);

/// Compares the fields of a config.json with the sizes of the weights and takes its scaling_factor and
/// temporal_downsample. Throws UserError (input).
void check_config(std::string_view json, const std::string& file, Config& config);

nlohmann::ordered_json config_json(const Config& config);

WeightForm weight_form();

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
