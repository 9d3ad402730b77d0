#pragma once
// Sizes of an Open-Sora 2.0 denoiser, an MMDiT (Peng et al. 2025): the fields of its program's model configuration, and
// the presets. One of pictures alone and with a guidance embedding is Flux (Black Forest Labs 2024).
//
//   Config config = preset("opensora2-11b");
//   Config other = parse_config(text, "flux/transformer/config.json");
//
// And its files: released, Flux's and diffusers' names, and config.json.
//
//   Family{.weights = {weight_form()}};
//
// Ours are the names of Open-Sora's released files, in which heads are rotated by halves, but that what these hold in
// one tensor and tensor parallelism shares apart is a tensor of its own (checkpoint/row_part.h):
//
// | ours                           | released                           | Flux                    |
// |--------------------------------|------------------------------------|-------------------------|
// | img_attn.{q,k,v}_proj          | the same                           | img_attn.qkv, by thirds |
// | single: q_proj, k_proj         | the same                           | linear1, by sevenths    |
// | single: v_proj, mlp            | v_mlp, by fifths                   | linear1                 |
// | single: linear2.attn, .mlp     | linear2, by fifths of its columns  | linear2                 |
// | final_layer.shift, .scale      | final_layer.adaLN_modulation.1     | the same                |
//
// Flux's files, and diffusers', rotate heads by neighbours: their rows of q, k and the norms of these have another order.
#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"

namespace tessera::models::opensora {

inline constexpr int64_t kFrequencies = 256;  ///< width of the sinusoids of time and guidance

struct Config {
  int64_t hidden_size = 3072, num_heads = 24;
  int64_t depth = 19, depth_single = 38;       ///< blocks with two streams, then blocks with one
  int64_t in_channels = 64;                    ///< of a token: latent channels times patch squared
  int64_t patch = 2;                           ///< of height and width
  int64_t mlp_ratio = 4;                       ///< width of every feed-forward, in model widths
  int64_t context_dim = 4096;                  ///< width of T5's rows
  int64_t context_len = 512;                   ///< most rows of a caption
  int64_t pooled_dim = 768;                    ///< width of CLIP's pooled text
  std::array<int64_t, 3> axes = {16, 56, 56};  ///< channels of a head that are rotated by frame, row and column
  bool guidance = false;                       ///< has an embedding of the guidance
  bool cond = true;                            ///< takes given latent frames and their mask beside the noisy latent
  /// How its own files hold queries and keys: q, k and v in one tensor; heads that are rotated by neighbours 2i, 2i + 1
  /// and not by halves. Both are so in Flux's files, neither in the released ones.
  bool fused = false, neighbours = false;

  int64_t head_dim() const { return hidden_size / num_heads; }
  int64_t mlp_dim() const { return mlp_ratio * hidden_size; }
  int64_t latent_channels() const { return in_channels / (patch * patch); }
  int64_t cond_channels() const { return (latent_channels() + 1) * patch * patch; }  ///< of a token: mask, then latent
  std::array<int64_t, 3> patches() const { return {1, patch, patch}; }
  bool operator==(const Config&) const = default;
};

/// Of Open-Sora's configuration or of diffusers' FluxTransformer2DModel. Throws UserError (input) naming file and field.
Config parse_config(std::string_view json, const std::string& file);
/// Open-Sora's form.
std::string to_json(const Config& config);
/// diffusers' form. Throws UserError (input) for a model with `cond`, which diffusers does not have.
std::string to_diffusers_json(const Config& config);

const std::vector<std::pair<std::string, Config>>& presets();

/// How a program's files hold what is apart here.
struct FileForm {
  bool fused = false;     ///< q, k and v in one tensor
  int64_t pairs = 0;      ///< width of the heads where these are rotated by neighbours, else 0
  int64_t mlp_ratio = 4;  ///< of the feed-forward, which lies beside v
  auto operator<=>(const FileForm&) const = default;
};
/// Ours -> files of that form. Tables live as long as the program.
const std::vector<NamePattern>& program_names(const FileForm& form);
/// Ours -> diffusers', whose heads of that width are rotated by neighbours.
const std::vector<NamePattern>& diffusers_names(int64_t head_dim, int64_t mlp_ratio);

WeightForm weight_form();

}  // namespace tessera::models::opensora
