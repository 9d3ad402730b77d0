#pragma once
// Sizes and scaling of Wan 2.1's autoencoder, the name "WanVAE_" of the official code, "AutoencoderKLWan" of diffusers.
//
//   wan21::Config config = wan21::parse_config(text, "vae/config.json");
#include <string>
#include <vector>

#include "tessera/models/vae/video_vae.h"
#include "tessera/models/vae/wan_statistics.h"

namespace tessera::models::wan21 {

/// Defaults are those of the released one (Wan2.1_VAE.pth, 126,892,531 parameters).
struct Config {
  int64_t dim = 96;                                             ///< channels of the widest pictures
  int64_t z_dim = 16;                                           ///< channels of a latent
  std::vector<int64_t> dim_mult = {1, 2, 4, 4};                 ///< channels of the levels, in units of dim
  int64_t num_res_blocks = 2;                                   ///< of an encoder's level; a decoder's has one more
  std::vector<bool> temporal_downsample = {false, true, true};  ///< whether the step between levels halves time, too
  /// Of each latent channel: what a denoiser sees is (latent - mean) / std.
  std::vector<double> mean = {kWan21Mean.begin(), kWan21Mean.end()};
  std::vector<double> std = {kWan21Std.begin(), kWan21Std.end()};

  int64_t levels() const { return static_cast<int64_t>(dim_mult.size()); }
  int64_t stride() const { return int64_t{1} << (levels() - 1); }  ///< pixels of a latent cell along a side: 8
  int64_t time_stride() const;                                     ///< frames of a latent frame but the first: 4
};

/// The official config.json or diffusers'. Throws UserError (input), also for Wan 2.2's autoencoder.
Config parse_config(std::string_view json, const std::string& file);

/// The sizes of weights that come without a config.json, as Wan2.1_VAE.pth does; the scaling is the published one.
/// `official` gives a tensor's shape by its official name, empty when it is not there.
Config config_of_weights(const std::function<std::vector<int64_t>(const std::string& official)>& shape,
                         const std::string& file);

}  // namespace tessera::models::wan21
