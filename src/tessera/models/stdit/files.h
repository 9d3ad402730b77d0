#pragma once
// Sizes of STDiT3, the denoiser of Open-Sora 1.2 and 1.3 (Zheng et al. 2024): the fields of its program's config.json,
// and the presets.
//
//   Config config = preset("opensora1.2");
//   Config other = parse_config(text, "OpenSora-STDiT-v3/config.json");
//
// And its files: released names, and config.json.
//
//   Family{.weights = weight_forms()};
//
// Ours are the names of its program, but that queries, keys and values are tensors of their own, which tensor
// parallelism can share: files hold them one after the other in one tensor (checkpoint/row_part.h).
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"

namespace tessera::models::stdit {

inline constexpr int64_t kFrequencies = 256;  ///< width of the sinusoids of time and frame rate

struct Config {
  int64_t hidden_size = 1152, num_heads = 16;
  int64_t depth = 28;  ///< pairs of a spatial and a temporal block
  int64_t in_channels = 4;
  int64_t patch = 2;  ///< of height and width
  double mlp_ratio = 4;
  int64_t caption_dim = 4096;
  int64_t caption_len = 300;    ///< most rows of a caption
  int64_t input_sq_size = 512;  ///< side of the square, in pixels, that is the unit of the positions
  bool pred_sigma = true;       ///< the head predicts as many channels again, which nothing reads
  bool keeps_sigma = false;     ///< these are part of predictions and targets (for verification)

  // of 1.3
  bool cond = false;  ///< takes given latent frames and their mask beside the noisy latent
  /// Rows, columns and frames of the windows in which the temporal blocks attend, 0: the whole axis. Nothing: each place
  /// attends to itself over the frames.
  std::optional<std::array<int64_t, 3>> window = {};
  bool spatial_rope = false;  ///< the spatial blocks rotate rows and columns

  int64_t head_dim() const { return hidden_size / num_heads; }
  int64_t mlp_dim() const { return static_cast<int64_t>(mlp_ratio * static_cast<double>(hidden_size)); }
  int64_t out_channels() const { return pred_sigma ? 2 * in_channels : in_channels; }
  int64_t predicted_channels() const { return keeps_sigma ? out_channels() : in_channels; }
  int64_t places() const { return patch * patch; }  ///< of a token
  bool operator==(const Config&) const = default;
};

/// Throws UserError (input) naming file and field; for members of the family that are not supported with the reason.
Config parse_config(std::string_view json, const std::string& file);
std::string to_json(const Config& config);

const std::vector<std::pair<std::string, Config>>& presets();

/// Ours -> its program's files.
const std::vector<NamePattern>& official_names();

std::vector<WeightForm> weight_forms();

}  // namespace tessera::models::stdit
