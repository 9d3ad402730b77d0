#pragma once
// Sizes of a HunyuanVideo-1.5 denoiser (Tencent 2025): the fields of its program's config.json, diffusers' form of it, and
// the presets.
//
//   Config config = preset("hunyuan1.5-480p-t2v");
//   Config other = parse_config(text, "transformer/480p_t2v/config.json", {});
//
// And its files: official, diffusers' and ComfyUI's names, and config.json.
//
//   Family{.weights = {weight_form()}};
//
// Ours are the official names, but that what these hold in one tensor is apart here (checkpoint/row_part.h):
//
// | ours                                | official                          | ComfyUI                      |
// |-------------------------------------|-----------------------------------|------------------------------|
// | refiner: self_attn_{q,k,v}          | self_attn_qkv, by thirds          | self_attn.qkv, by thirds     |
// | double_blocks.#.img_attn_{q,k,v}    | the same                          | img_attn.qkv, by thirds      |
// | final_layer.shift, .scale           | final_layer.adaLN_modulation.1    | the same                     |
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"

namespace tessera::models::hunyuan {

inline constexpr int64_t kFrequencies = 256;  ///< width of the sinusoids of timesteps
inline constexpr int64_t kRefiners = 2;       ///< blocks that refine the caption

struct Config {
  int64_t hidden_size = 2048, num_heads = 16;
  int64_t depth = 54;                             ///< blocks, all with two streams
  int64_t channels = 32;                          ///< of a latent; the model reads the given one and its mask beside it
  int64_t mlp_ratio = 4;                          ///< width of every feed-forward, in model widths
  std::array<int64_t, 3> axes = {16, 56, 56};     ///< channels of a head that are rotated by frame, row and column
  int64_t theta = 256;                            ///< of the rotation
  int64_t text_dim = 3584;                        ///< width of the caption's rows
  int64_t glyph_dim = 1472, glyph_hidden = 2048;  ///< of the rows of quoted text, and of their projection
  int64_t image_dim = 1152;                       ///< of the rows of a picture
  int64_t text_len = 1000, glyph_len = 256, image_len = 729;  ///< most rows of each; ours, files do not tell them
  bool meanflow = false;                                      ///< is told the next timestep too (step-distilled)

  int64_t head_dim() const { return hidden_size / num_heads; }
  int64_t mlp_dim() const { return mlp_ratio * hidden_size; }
  int64_t in_channels() const { return 2 * channels + 1; }  ///< of a token: noisy latent, given latent, mask
  int64_t text_rows() const { return text_len + glyph_len + image_len; }
  bool operator==(const Config&) const = default;
};

/// Of its program's config.json or of diffusers' HunyuanVideo15Transformer3DModel; `weights` have the sizes that these
/// leave out. Throws UserError (input) naming file and field.
Config parse_config(std::string_view json, const std::string& file,
                    const std::map<std::string, std::vector<int64_t>>& weights = {});
/// Its program's form.
std::string to_json(const Config& config);
std::string to_diffusers_json(const Config& config);

const std::vector<std::pair<std::string, Config>>& presets();

/// Ours -> a naming: official, diffusers, fused (ComfyUI's), tessera.
std::string foreign_tensor(const std::string& name, const std::string& naming);

WeightForm weight_form();

}  // namespace tessera::models::hunyuan
