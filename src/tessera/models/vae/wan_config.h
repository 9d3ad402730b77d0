#pragma once
// Sizes and scaling of Wan's autoencoders, "WanVAE_" in the official code and "AutoencoderKLWan" in diffusers: of Wan
// 2.1 (also used by Wan 2.2's A14B and S2V) and of Wan 2.2 (TI2V-5B).
//
//   wan_vae::Config config = wan_vae::parse_config(text, "vae/config.json");
#include <string>
#include <vector>

#include "tessera/models/vae/shape_of.h"
#include "tessera/models/vae/wan_statistics.h"

namespace tessera::models::wan_vae {

/// Defaults are those of Wan 2.1's (Wan2.1_VAE.pth, 126,892,531 parameters).
struct Config {
  int64_t dim = 96;                                             ///< channels of the encoder at full resolution
  int64_t decoder_dim = 96;                                     ///< channels of the decoder at full resolution
  int64_t z_dim = 16;                                           ///< channels of a latent
  std::vector<int64_t> dim_mult = {1, 2, 4, 4};                 ///< channels of the levels, in units of dim
  int64_t num_res_blocks = 2;                                   ///< in a level of the encoder; the decoder has one more
  std::vector<bool> temporal_downsample = {false, true, true};  ///< whether the step between levels halves time, too
  bool residual = false;  ///< Wan 2.2: levels have shortcuts, and steps up keep the channels
  int64_t patch = 1;      ///< side of the squares of pixels that are first made channels; Wan 2.2: 2
  /// Statistics of each latent channel: the denoiser's latents are (latent - mean) / std.
  std::vector<double> mean = {kWan21Mean.begin(), kWan21Mean.end()};
  std::vector<double> std = {kWan21Std.begin(), kWan21Std.end()};

  const char* version() const { return residual ? "2.2" : "2.1"; }
  int64_t levels() const { return static_cast<int64_t>(dim_mult.size()); }
  int64_t stride() const { return patch << (levels() - 1); }  ///< pixels of a latent cell along a side: 8, or 16
  int64_t time_stride() const;                                ///< frames of a latent frame after the first: 4
};

/// Wan 2.2's: Wan2.2_VAE.pth, 704,688,668 parameters.
Config wan22_config();

/// The official config.json or diffusers', of either version. Throws UserError (input).
Config parse_config(std::string_view json, const std::string& file);

/// The sizes of weights that come without a config.json, as the .pth files do; the scaling is the published one.
/// `official` gives a tensor's shape by its official name, empty when it is not there.
Config config_of_weights(bool version_22, const ShapeOf& shape, const std::string& file);

}  // namespace tessera::models::wan_vae
