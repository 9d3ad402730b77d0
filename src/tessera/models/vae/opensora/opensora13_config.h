#pragma once
// Sizes and scaling of Open-Sora 1.3's autoencoder, "OpenSoraVAE_V1_3_Pipline" in its config.json.
//
//   opensora13_vae::Config config = opensora13_vae::config_of_weights(shape, "model.safetensors");
//   opensora13_vae::check_config(text, "vae/config.json", config);          // and takes its piece and scaling
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/vae/shape_of.h"

namespace tessera::models::opensora13_vae {

inline constexpr int64_t kStride = 8;      ///< pixels of a latent cell along a side
inline constexpr int64_t kTimeStride = 4;  ///< frames of a latent frame after the first of a piece

/// What is subtracted from a channel of a latent, and what it is divided by.
enum class Normalization {
  none,
  video,         ///< of the channel
  video_5frames  ///< of the channel and of the latent frame's place among five: the pieces of the release
};

/// Defaults are those of the release.
struct Config {
  /// Channels from full resolution down. Every level but the last halves height and width; the second and third halve
  /// time as well.
  int64_t first = 128;                                 ///< channels that the encoder makes of colours
  std::vector<int64_t> widths = {128, 256, 512, 512};  ///< of the encoder
  std::vector<int64_t> decoder_widths = {128, 256, 512, 512};
  int64_t layers = 2;          ///< residual blocks in a level of the encoder
  int64_t decoder_layers = 2;  ///< as the config counts them: the decoder has one more in a level
  int64_t latent_channels = 16;
  int64_t groups = 32;  ///< of channels that are normalised together
  int64_t piece = 17;   ///< frames that are coded together ("micro_frame_size"); 0: all
  bool overlap = true;  ///< a piece begins with the last frame of the one before ("temporal_overlap")
  Normalization normalization = Normalization::video;

  int64_t latent_piece() const { return (piece - 1) / kTimeStride + 1; }
};

/// Widths, layers and channels; the rest is that of the release. Throws UserError (input) for another architecture.
Config config_of_weights(const ShapeOf& shape, const std::string& file);

/// Compares the fields of a config.json with the sizes of the weights and takes its groups, piece and normalization. The
/// released file has none of these: the trainer's settings do. Throws UserError (input).
void check_config(std::string_view json, const std::string& file, Config& config);

/// Throws UserError (input) where the widths do not divide into the groups, or there are no statistics for so many
/// channels.
void check_sizes(const Config& config, const std::string& file);

/// The fields of its config.json.
nlohmann::ordered_json config_json(const Config& config);

}  // namespace tessera::models::opensora13_vae
