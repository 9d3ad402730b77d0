#pragma once
// Sizes, scaling and names of HunyuanVideo-1.5's autoencoder, "AutoencoderKLConv3D" in Tencent's code and
// "AutoencoderKLHunyuanVideo15" in diffusers.
//
//   hunyuan15_vae::Config config = hunyuan15_vae::config_of_weights(shape, "vae/diffusion_pytorch_model.safetensors");
//   hunyuan15_vae::check_config(text, "vae/config.json", config);        // and takes its scaling
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/common/weight_form.h"
#include "tessera/models/vae/file_sizes.h"

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
