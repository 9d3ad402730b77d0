#pragma once
// Sizes and scaling of Wan's autoencoders, "WanVAE_" in the official code and "AutoencoderKLWan" in diffusers: of Wan
// 2.1 (also used by Wan 2.2's A14B and S2V) and of Wan 2.2 (TI2V-5B).
//
//   wan_vae::Config config = wan_vae::parse_config(text, "vae/config.json");
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/vae/file_sizes.h"

namespace tessera::models::wan_vae {

inline constexpr std::array<double, 16> kWan21Mean = {-0.7571, -0.7089, -0.9113, 0.1075,  -0.1745, 0.9653,
                                                      -0.1517, 1.5508,  0.4134,  -0.0715, 0.5517,  -0.3632,
                                                      -0.1922, -0.9497, 0.2503,  -0.2921};
inline constexpr std::array<double, 16> kWan21Std = {2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
                                                     3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160};

inline constexpr std::array<double, 48> kWan22Mean = {
    -0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174,  0.1838,  0.1557,  -0.1382, 0.0542,  0.2813,  0.0891,
    0.1570,  -0.0098, 0.0375,  -0.1825, -0.2246, -0.1207, -0.0698, 0.5109,  0.2665,  -0.2108, -0.2158, 0.2502,
    -0.2055, -0.0322, 0.1109,  0.1567,  -0.0729, 0.0899,  -0.2799, -0.1230, -0.0313, -0.1649, 0.0117,  0.0723,
    -0.2839, -0.2083, -0.0520, 0.3748,  0.0152,  0.1957,  0.1433,  -0.2944, 0.3573,  -0.0548, -0.1681, -0.0667};
inline constexpr std::array<double, 48> kWan22Std = {
    0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901,
    0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
    0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944,
    0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744};

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

inline constexpr int64_t kWanVaeResBlocks = 2;  ///< of the released ones

/// Wan 2.1 (16 channels): the stages of encoder and decoder are one list, which diffusers divides into blocks of the
/// decoder.
const KeyMap& wan21_vae_names(int64_t res_blocks = kWanVaeResBlocks);
/// Wan 2.2 (48 channels): lists within lists in both.
const KeyMap& wan22_vae_names(int64_t res_blocks = kWanVaeResBlocks);
/// The residual blocks in a level of the encoder, by the tensors of either naming that there are (those that the released
/// number's map leaves as they are, too).
int64_t wan_vae_res_blocks(const std::function<bool(const std::string&)>& has);

std::vector<WeightForm> weight_forms();  ///< 2.1, 2.2

}  // namespace tessera::models::wan_vae
