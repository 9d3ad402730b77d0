#pragma once
// Sizes and scaling of Open-Sora 1.2's autoencoder, "VideoAutoencoderPipeline" in its config.json: the autoencoder of
// pictures of Stable Diffusion XL, and one of time over its latents.
//
//   opensora12_vae::Config config = opensora12_vae::config_of_weights(shape, "model.safetensors");
//   opensora12_vae::check_config(text, "vae/config.json", config);          // and takes its groups and piece
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/common/weight_form.h"
#include "tessera/models/vae/file_sizes.h"

namespace tessera::models::opensora12_vae {

inline constexpr int64_t kStride = 8;  ///< pixels of a latent cell along a side

/// Defaults are those of the release.
struct Config {
  /// Of pictures: channels from full resolution down. Every level but the last halves height and width.
  std::vector<int64_t> widths = {128, 256, 512, 512};
  int64_t layers = 2;  ///< residual blocks in a level of the encoder; the decoder has one more
  int64_t latent_channels = 4;
  int64_t groups = 32;      ///< of channels that are normalised together
  double factor = 0.18215;  ///< latents of pictures times it are what is coded over time
  /// Of time: channels of each level, and after which of them, the last left out, the frames are halved.
  std::vector<int64_t> time_widths = {128, 256, 256, 512};
  int64_t time_first = 128;  ///< that the first convolution makes
  std::vector<bool> halved = {false, true, true};
  int64_t time_layers = 4;
  int64_t time_groups = 32;
  int64_t piece = 17;  ///< frames that are coded together ("micro_frame_size")
  /// A denoiser's latents are (latent - mean) / std.
  std::vector<double> mean = {-0.10, 0.34, 0.27, 0.98}, std = {3.85, 2.32, 2.33, 3.06};

  int64_t time_stride() const;  ///< frames of a latent frame
  int64_t latent_piece() const { return (piece + time_stride() - 1) / time_stride(); }
};

/// Widths, layers and channels; groups, scaling and piece are those of the release. Throws UserError (input) for another
/// architecture.
Config config_of_weights(const ShapeOf& shape, const std::string& file);

/// Compares the fields of a config.json with the sizes of the weights and takes its groups, scaling and piece. Throws
/// UserError (input).
void check_config(std::string_view json, const std::string& file, Config& config);

/// Throws UserError (input) where the widths do not divide into the groups.
void check_groups(const Config& config, const std::string& file);

/// The fields of its config.json.
nlohmann::ordered_json config_json(const Config& config);

WeightForm weight_form();

}  // namespace tessera::models::opensora12_vae
