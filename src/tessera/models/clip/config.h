#pragma once
// Sizes of a CLIP image tower: from the fields of the official VisionTransformer or of transformers' CLIPVisionModel,
// or from the shapes of the weights.
//
//   Config config = preset or parse_config(text, "image_encoder/config.json");
//   Config same = config_of(official_shapes, "models_clip.pth");       // where there is no config.json
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::models::clip {

struct Config {
  int64_t image_size = 224;  ///< pixels a side
  int64_t patch = 14;
  int64_t dim = 1280;
  int64_t mlp_dim = 5120;
  int64_t num_heads = 16;
  int64_t num_layers = 32;
  double eps = 1e-5;
  std::array<double, 3> mean = {0.48145466, 0.4578275, 0.40821073};
  std::array<double, 3> deviation = {0.26862954, 0.26130258, 0.27577711};

  int64_t side() const { return image_size / patch; }  ///< patches
  int64_t rows() const { return 1 + side() * side(); }
  bool operator==(const Config&) const = default;
};

/// Either form. Throws UserError (input) naming file and field, also for towers of another make.
Config parse_config(std::string_view json, const std::string& file);

/// From the shapes of the tensors under official names. The number of heads is that of the preset of this width, or one
/// for 80 channels, as no shape depends on it. Throws UserError (input) naming `file` if this is no CLIP image tower.
Config config_of(const std::map<std::string, std::vector<int64_t>>& official, const std::string& file);

/// "clip-vit-h" is the released one, "clip-demo" a tiny one for runs without weights.
const std::vector<std::pair<std::string, Config>>& presets();

}  // namespace tessera::models::clip
