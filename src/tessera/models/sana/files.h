#pragma once
// Sizes of a Sana denoiser (Xie et al. 2024; SANA-1.5, Xie et al. 2025; SANA-Sprint, Chen et al. 2025; SANA-Video, Chen
// et al. 2025): the fields of diffusers' config.json, and the presets.
//
//   Config config = preset("sana-1.6b");
//   Config other = parse_config(text, "Sana_1600M_1024px_diffusers/transformer/config.json");
//
// And its files: names in NVlabs' program and in diffusers, config.json, pipeline folders.
//
// Ours are the names of NVlabs' program, but that queries, keys and values, and the two halves of the feed-forward, are
// tensors of their own, which tensor parallelism can share: files hold them one after the other in one tensor
// (checkpoint/row_part.h).
//
//   Family{.weights = weight_forms(), .pipeline_files = pipeline_files};
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"

namespace tessera::models::sana {

inline constexpr int64_t kFrequencies = 256;  ///< width of the sinusoids of time and guidance, in every program

/// Image models have one frame. Sprint's have a guidance embedding; SANA-Video's rotate the positions of their linear
/// attention and convolve over time.
enum class Type { image, sprint, video };
std::string_view name(Type type);

struct Config {
  Type type = Type::image;
  int64_t num_heads = 36, head_dim = 32;  ///< of the linear attention
  int64_t cross_heads = 16;
  int64_t num_layers = 28;
  int64_t in_channels = 32, out_channels = 32;
  int64_t caption_dim = 2304;
  int64_t caption_len = 300;  ///< most rows of a caption
  double mlp_ratio = 2.5;
  std::array<int64_t, 3> patch = {1, 1, 1};  ///< frames, height, width
  bool qk_norm = false;                      ///< RMSNorm of queries and keys over all heads, in both attentions
  int64_t sample_size = 32;                  ///< side of the latents that it was trained on; the grid of the positions
  std::optional<double> interpolation_scale = {};  ///< of the table of positions; nothing: it has none
  double norm_eps = 1e-6;
  double attention_eps = 1e-15;  ///< added to the linear attention's divisor; 1e-8 in NVlabs' program
  double cross_norm_eps = 1e-5;  ///< of the norms of the cross-attention; 1e-6 in NVlabs' program
  double timestep_scale = 1;     ///< of timesteps, which are in 0..1 for Sprint's models, else in 0..1000
  double guidance_scale = 0.1;   ///< factor of the guidance before its embedding
  bool logvar = false;           ///< makes the log variance that weighs a sample's consistency loss

  int64_t dim() const { return num_heads * head_dim; }
  int64_t hidden() const { return static_cast<int64_t>(mlp_ratio * static_cast<double>(dim())); }
  int64_t patch_size() const { return patch[0] * patch[1] * patch[2]; }
  bool is_video() const { return type == Type::video; }
  bool has_guidance() const { return type == Type::sprint; }
  bool operator==(const Config&) const = default;
};

/// The class of diffusers that has the config.json.
std::string_view class_name(Type type);

/// Throws UserError (input) naming file and field; for members of the family that are not supported with the reason.
Config parse_config(std::string_view json, const std::string& file);
/// diffusers' form; fields that it lacks are written where they differ from their defaults.
std::string to_json(const Config& config);

const std::vector<std::pair<std::string, Config>>& presets();

/// Ours -> NVlabs' files.
const std::vector<NamePattern>& official_names();
/// Ours -> diffusers'; the classes of the three types differ in a few.
const std::vector<NamePattern>& diffusers_names(Type type);

/// One for each type: they differ in a few names.
std::vector<WeightForm> weight_forms();

std::map<std::string, std::string> pipeline_files(const PipelineParts& parts);

}  // namespace tessera::models::sana
