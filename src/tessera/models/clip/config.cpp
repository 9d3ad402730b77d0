#include "tessera/models/clip/config.h"

#include <cmath>

#include "tessera/models/common/config_reader.h"

namespace tessera::models::clip {

namespace {

std::array<double, 3> colours(const ConfigReader& json, const char* key, const std::array<double, 3>& absent) {
  const std::vector<double> values = json.reals(key, {absent[0], absent[1], absent[2]});
  if (values.size() != 3)
    json.fail(std::string(key) + " has " + std::to_string(values.size()) + " numbers, expected 3");
  return {values[0], values[1], values[2]};
}

Config parse_official(const ConfigReader& json) {
  json.expect("pool_type", "token");
  json.expect("pre_norm", true);
  json.expect("post_norm", false);
  json.expect("activation", "gelu");
  Config c;
  c.dim = json.size("dim");
  const double mlp_dim = json.real("mlp_ratio", 4) * static_cast<double>(c.dim);
  json.expect_narrow("mlp_ratio times dim", mlp_dim);
  c.mlp_dim = std::llround(mlp_dim);
  if (c.mlp_dim < 1) json.fail("mlp_ratio makes a feed-forward without a channel");
  c.num_heads = json.size("num_heads");
  c.num_layers = json.size("num_layers");
  c.eps = json.real("norm_eps", c.eps);
  c.mean = colours(json, "mean", c.mean);
  c.deviation = colours(json, "std", c.deviation);
  return c;
}

Config parse_hf(const ConfigReader& json) {
  json.expect("hidden_act", "gelu");  // OpenAI's own towers have quick_gelu
  Config c;
  c.dim = json.size("hidden_size");
  c.mlp_dim = json.size("intermediate_size");
  c.num_heads = json.size("num_attention_heads");
  c.num_layers = json.size("num_hidden_layers");
  c.eps = json.real("layer_norm_eps", c.eps);
  return c;
}

}  // namespace

Config parse_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  json.without_effect({"out_dim", "projection_dim"});  // of a head behind the features that are used
  Config c = json.has("hidden_size") ? parse_hf(json) : parse_official(json);
  c.image_size = json.size("image_size", c.image_size);
  c.patch = json.size("patch_size", c.patch);
  if (c.image_size % c.patch != 0)
    json.fail("image_size " + std::to_string(c.image_size) + " is not a multiple of patch_size " +
              std::to_string(c.patch));
  if (c.dim % c.num_heads != 0)
    json.fail("a width of " + std::to_string(c.dim) + " does not divide into " + std::to_string(c.num_heads) +
              " heads");
  if (c.num_layers < 2) json.fail("one layer: the features are those of the last layer but one");
  return c;
}

Config config_of(const std::map<std::string, std::vector<int64_t>>& official, const std::string& file) {
  const auto size = [&](const std::string& name, size_t dim) {
    const auto found = official.find(name);
    check_input(
        found != official.end() && dim < found->second.size() && found->second[dim] > 0, "models.clip",
        file + ": lacks " + name + ": it is no CLIP image tower",
        "give models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth or the image_encoder/ of a diffusers folder");
    return found->second[dim];
  };
  Config c;
  c.dim = size("visual.patch_embedding.weight", 0);
  c.patch = size("visual.patch_embedding.weight", 2);
  c.mlp_dim = size("visual.transformer.0.mlp.0.weight", 0);
  const auto positions = official.find("visual.pos_embedding");  // [1, rows, dim] or [rows, dim]
  const size_t dims = positions == official.end() ? 0 : positions->second.size();
  check_input(dims >= 2 && positions->second[dims - 2] >= 1, "models.clip",
              file + ": visual.pos_embedding is missing, or has another form than [1, rows, dim]");
  const int64_t rows = positions->second[dims - 2];
  const auto side = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(rows - 1))));
  check_input(side * side + 1 == rows, "models.clip",
              file + ": " + std::to_string(rows) + " positions are not one and a square's");
  c.image_size = side * c.patch;
  c.num_layers = 0;
  while (official.count("visual.transformer." + std::to_string(c.num_layers) + ".norm1.weight")) ++c.num_layers;
  c.num_heads = c.dim % 80 == 0 ? c.dim / 80 : 1;
  for (const auto& [name, preset] : presets())
    if (preset.dim == c.dim) c.num_heads = preset.num_heads;
  return c;
}

const std::vector<std::pair<std::string, Config>>& presets() {
  static const std::vector<std::pair<std::string, Config>> table = {
      {"clip-vit-h", {}},
      {"clip-demo", {.image_size = 28, .dim = 24, .mlp_dim = 48, .num_heads = 2, .num_layers = 3}},
  };
  return table;
}

}  // namespace tessera::models::clip
