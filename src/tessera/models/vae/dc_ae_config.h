#pragma once
// Sizes and scaling of DC-AE, the deep-compression autoencoder of Sana: "AutoencoderDC" in diffusers, "DCAE" in
// efficientvit.
//
//   dc_ae::Config config = dc_ae::config_of_weights(shape, "vae/diffusion_pytorch_model.safetensors");
//   dc_ae::check_config(text, "vae/config.json", config);            // and takes its scaling_factor
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/common/weight_form.h"
#include "tessera/models/vae/file_sizes.h"

namespace tessera::models::dc_ae {

/// The blocks of one resolution: `depth` residual blocks, or blocks of linear attention, of `width` channels.
struct Stage {
  int64_t width = 0, depth = 0;
  bool attention = false;
  bool halves_time = false;  ///< between it and the next, of the autoencoder of clips (dc_ae_layers.h)
};

/// Defaults are those of dc-ae-f32c32-sana-1.0 and 1.1 (312,250,275 parameters).
struct Config {
  int64_t latent_channels = 32;
  int64_t head_dim = 32;
  /// From full resolution down; each has half the height and width of the one before.
  std::vector<Stage> encoder = {{128, 2}, {256, 2}, {512, 2}, {512, 3, true}, {1024, 3, true}, {1024, 3, true}};
  std::vector<Stage> decoder = {{128, 3}, {256, 3}, {512, 3}, {512, 3, true}, {1024, 3, true}, {1024, 3, true}};
  double scaling_factor = 0.41407;  ///< a denoiser's latents are those of the encoder times it

  int64_t stride() const { return int64_t{1} << (encoder.size() - 1); }  ///< pixels of a latent cell along a side
};

/// Everything but the scaling follows from the weights. Throws UserError (input) where they are of another architecture
/// or not whole.
Config config_of_weights(const ShapeOf& shape, const std::string& file);

/// Compares the fields of a config.json with the sizes of the weights and takes its scaling_factor; one of efficientvit
/// names a release alone and changes nothing. Throws UserError (input).
void check_config(std::string_view json, const std::string& file, Config& config);

/// The fields of diffusers' config.json.
nlohmann::ordered_json config_json(const Config& config);

/// Part `part` of the stored rows, which are `parts` equal ones.
struct StoredRows {
  std::string name;
  int64_t part = 0, parts = 1;
};

StoredRows in_efficientvit(std::string_view diffusers_name);

std::vector<WeightForm> weight_forms();  ///< diffusers' names, efficientvit's

}  // namespace tessera::models::dc_ae

namespace tessera::models::dc_ae_video {

// Sizes and scaling of the video DC-AE of Open-Sora 2.0, "DCAE" in its code: dc-ae-f32t4c128.
//
//   dc_ae_video::Config config = dc_ae_video::config_of_weights(shape, "F32T4C128_AE.safetensors");
//   dc_ae_video::check_config(text, "vae/config.json", config);            // and takes its scaling_factor

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

}  // namespace tessera::models::dc_ae_video
