#pragma once
// Sizes of a Wan denoiser: the fields of the official config.json, its diffusers form, and the presets.
//
//   Config config = preset("wan2.1-t2v-1.3b");
//   Config other = parse_config(text, "my-model/config.json");
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera::models::wan {

struct Config {
  int64_t dim = 1536;
  int64_t ffn_dim = 8960;
  int64_t num_heads = 12;
  int64_t num_layers = 30;
  int64_t in_dim = 16;
  int64_t out_dim = 16;
  int64_t text_dim = 4096;
  int64_t text_len = 512;
  int64_t freq_dim = 256;
  std::array<int64_t, 3> patch = {1, 2, 2};  ///< frames, height, width
  double eps = 1e-6;

  int64_t head_dim() const { return dim / num_heads; }
  int64_t patch_size() const { return patch[0] * patch[1] * patch[2]; }
  bool operator==(const Config&) const = default;
};

/// Reads either form. Throws UserError (input) naming file and field, also for variants that are not text-to-video.
Config parse_config(std::string_view json, const std::string& file);
/// The official form; fields that it leaves to defaults are written when they differ from them.
std::string to_json(const Config& config);

const std::vector<std::pair<std::string, Config>>& presets();

}  // namespace tessera::models::wan
