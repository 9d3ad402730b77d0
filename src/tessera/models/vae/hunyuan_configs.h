#pragma once
// Sizes and scaling of HunyuanVideo's autoencoder, "AutoencoderKLHunyuanVideo" in diffusers, "AutoencoderKLCausal3D" in
// Tencent's code and in Open-Sora 2.0, which trains on its latents.
//
//   hunyuan_vae::Config config = hunyuan_vae::config_of_weights(shape, "hunyuan_vae.safetensors");
//   hunyuan_vae::check_config(text, "vae/config.json", config);          // and takes its groups and scaling
//
// Sizes, scaling and names of HunyuanVideo-1.5's autoencoder, "AutoencoderKLConv3D" in Tencent's code and
// "AutoencoderKLHunyuanVideo15" in diffusers.
//
//   hunyuan15_vae::Config config = hunyuan15_vae::config_of_weights(shape, "vae/diffusion_pytorch_model.safetensors");
//   hunyuan15_vae::check_config(text, "vae/config.json", config);        // and takes its scaling
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/common/weight_form.h"
#include "tessera/models/vae/file_sizes.h"

namespace tessera::models::hunyuan_vae {

inline constexpr int64_t kStride = 8;      ///< pixels of a latent cell along a side
inline constexpr int64_t kTimeStride = 4;  ///< frames of a latent frame after the first

/// Defaults are those of the release (246,478,803 parameters).
struct Config {
  /// Channels from full resolution down. Every level but the last halves height and width; the second and third halve
  /// time as well.
  std::vector<int64_t> widths = {128, 256, 512, 512};
  int64_t layers = 2;  ///< residual blocks in a level of the encoder; the decoder has one more
  int64_t latent_channels = 16;
  int64_t groups = 32;  ///< of channels that are normalised together
  /// A denoiser's latents are (latent - shift_factor) * scaling_factor.
  double scaling_factor = 0.476986, shift_factor = 0;
};

/// Widths, layers and channels; groups and scaling are those of the release. Throws UserError (input) for another
/// architecture.
Config config_of_weights(const ShapeOf& shape, const std::string& file);

/// Compares the fields of a config.json with the sizes of the weights and takes its groups and scaling. Throws UserError
/// (input).
void check_config(std::string_view json, const std::string& file, Config& config);

/// Throws UserError (input) where the widths do not divide into the groups.
void check_groups(const Config& config, const std::string& file);

/// The fields of diffusers' config.json.
nlohmann::ordered_json config_json(const Config& config);

WeightForm weight_form();

}  // namespace tessera::models::hunyuan_vae

namespace tessera::models::hunyuan15_vae {

/// Defaults are those of the release (1,260,634,115 parameters).
struct Config {
  std::vector<int64_t> widths = {128, 256, 512, 1024, 1024};  ///< channels from full resolution down
  int64_t layers = 2;  ///< residual blocks in a level of the encoder; the decoder has one more
  int64_t latent_channels = 32;
  int64_t stride = 16, time_stride = 4;  ///< pixels of a latent cell along a side; frames of a latent frame
  /// A denoiser's latents are (latent - shift_factor) * scaling_factor.
  double scaling_factor = 1.03682, shift_factor = 0;

  int64_t halvings() const;       ///< of sides
  int64_t time_halvings() const;  ///< the last of them, in the encoder; the first doublings in the decoder
};

/// Sizes; the scaling is that of the release. Throws UserError (input) for another architecture.
Config config_of_weights(const ShapeOf& shape, const std::string& file);
/// Compares the fields of a config.json, official or diffusers', with the sizes of the weights and takes its scaling.
/// Throws UserError (input).
void check_config(std::string_view json, const std::string& file, Config& config);
WeightForm weight_form();
/// Official names, which are ours, to diffusers'.
const KeyMap& diffusers_names();

}  // namespace tessera::models::hunyuan15_vae
