#include "tessera/models/stdit/config.h"

#include "tessera/models/common/config_reader.h"

namespace tessera::models::stdit {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kClass = "STDiT3";

/// One number for each axis, of which the first, of frames, is 1.
int64_t parse_patch(const ConfigReader& json, int64_t absent) {
  if (json.is_number("patch_size")) return json.size("patch_size");
  const std::vector<int64_t> sides = json.sizes("patch_size", {1, absent, absent});
  if (sides.size() != 3 || sides[0] != 1 || sides[1] != sides[2])
    json.fail("patch_size must be [1, n, n]: other patches were never released");
  return sides[1];
}

/// -1 in the file is the whole axis.
std::array<int64_t, 3> parse_window(const ConfigReader& json) {
  std::array<int64_t, 3> window = {};
  const std::vector<double> sides = json.reals("kernel_size", {});
  if (sides.size() != 3) json.fail("kernel_size must have three numbers: of rows, columns and frames");
  for (size_t i = 0; i < 3; ++i) {
    const double side = sides[i];
    if (side != -1 && !(side >= 1 && side <= static_cast<double>(ConfigReader::kMostSize) &&
                        side == static_cast<double>(static_cast<int64_t>(side))))
      json.fail("kernel_size has a number that is neither -1, the whole axis, nor a whole number from 1 on");
    window[i] = side == -1 ? 0 : static_cast<int64_t>(side);
  }
  return window;
}

void refuse_unsupported(const ConfigReader& json) {
  for (const char* field : {"_class_name", "model_type"}) json.expect(field, kClass);
  json.expect("qk_norm", true);
  json.expect("skip_y_embedder", false);
  json.expect("skip_temporal", false);
  json.expect("drop_path", 0.0);
  json.without_effect({"input_size", "class_dropout_prob", "enable_flash_attn", "enable_layernorm_kernel",
                       "enable_sequence_parallelism", "only_train_temporal", "freeze_y_embedder", "torch_dtype",
                       "transformers_version"});
}

void check_sizes(const ConfigReader& json, const Config& c) {
  const auto number = [](int64_t n) { return std::to_string(n); };
  if (c.depth > ConfigReader::kMostLayers)
    json.fail("a depth of " + number(c.depth) + " blocks, expected at most " + number(ConfigReader::kMostLayers));
  json.expect_narrow("mlp_ratio times hidden_size", c.mlp_ratio * static_cast<double>(c.hidden_size));
  json.expect_narrow("in_channels times the places of a patch",
                     static_cast<double>(c.in_channels) * static_cast<double>(c.places()));
  if (c.hidden_size % c.num_heads != 0)
    json.fail("hidden_size " + number(c.hidden_size) + " is not a multiple of num_heads " + number(c.num_heads));
  if (c.hidden_size % 4 != 0)
    json.fail("hidden_size " + number(c.hidden_size) +
              " is not a multiple of 4: the table of positions has a sine and a cosine of each of two axes");
  if (const int64_t axes = c.window ? 3 : 1; c.head_dim() % (2 * axes) != 0)
    json.fail("a head of " + number(c.head_dim()) + " channels cannot be rotated by " + number(axes) +
              (axes == 1 ? " axis" : " axes") + ": expected a multiple of " + number(2 * axes));
  if (c.spatial_rope && !c.window) json.fail("use_spatial_rope without kernel_size: its rotation is by three axes");
  if (c.mlp_dim() < 1) json.fail("mlp_ratio makes a feed-forward without a channel");
}

}  // namespace

Config parse_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  refuse_unsupported(json);
  Config c;
  c.hidden_size = json.size("hidden_size", c.hidden_size);
  c.num_heads = json.size("num_heads", c.num_heads);
  c.depth = json.size("depth", c.depth);
  c.in_channels = json.size("in_channels", c.in_channels);
  c.patch = parse_patch(json, c.patch);
  c.mlp_ratio = json.real("mlp_ratio", c.mlp_ratio);
  c.caption_dim = json.size("caption_channels", c.caption_dim);
  c.caption_len = json.size("model_max_length", c.caption_len);
  c.input_sq_size = json.size("input_sq_size", c.input_sq_size);
  c.pred_sigma = json.flag("pred_sigma", c.pred_sigma);
  c.keeps_sigma = json.flag("keeps_sigma", c.keeps_sigma);
  c.cond = json.has("kernel_size") || json.is_null("kernel_size");  // 1.2 knows no such field
  if (json.has("kernel_size")) c.window = parse_window(json);
  c.spatial_rope = json.flag("use_spatial_rope", c.spatial_rope);
  check_sizes(json, c);
  return c;
}

std::string to_json(const Config& c) {
  Json json = {{"_class_name", kClass},
               {"architectures", {kClass}},
               {"model_type", kClass},
               {"caption_channels", c.caption_dim},
               {"class_dropout_prob", 0.1},
               {"depth", c.depth},
               {"drop_path", 0.0},
               {"enable_flash_attn", false},
               {"enable_layernorm_kernel", false},
               {"enable_sequence_parallelism", false},
               {"freeze_y_embedder", false},
               {"hidden_size", c.hidden_size},
               {"in_channels", c.in_channels},
               {"input_size", {nullptr, nullptr, nullptr}},
               {"input_sq_size", c.input_sq_size},
               {"mlp_ratio", c.mlp_ratio},
               {"model_max_length", c.caption_len},
               {"num_heads", c.num_heads},
               {"only_train_temporal", false},
               {"patch_size", {1, c.patch, c.patch}},
               {"pred_sigma", c.pred_sigma},
               {"qk_norm", true},
               {"skip_y_embedder", false}};
  if (c.cond) {
    json["kernel_size"] = nullptr;
    if (c.window) json["kernel_size"] = *c.window;
    for (Json& side : json["kernel_size"])
      if (side == 0) side = -1;
    json["skip_temporal"] = false;
    json["use_spatial_rope"] = c.spatial_rope;
  }
  if (c.keeps_sigma) json["keeps_sigma"] = true;  // ours
  return json.dump(2) + "\n";
}

const std::vector<std::pair<std::string, Config>>& presets() {
  static const Config first;
  static const Config tiny = {
      .hidden_size = 24, .num_heads = 4, .depth = 2, .mlp_ratio = 2, .caption_dim = 20, .caption_len = 6};
  const auto as_1_3 = [](Config c, int64_t channels, int64_t side) {
    c.in_channels = channels, c.cond = c.spatial_rope = true;
    c.window = {side, side, 0};
    return c;
  };
  const auto larger = [](Config c) {
    c.hidden_size = 1872, c.num_heads = 26;
    return c;
  };
  static const std::vector<std::pair<std::string, Config>> table = {
      {"opensora1.2", first},
      {"opensora1.2-3b", larger(first)},
      {"opensora1.3", as_1_3(first, 16, 8)},
      // small enough for a unit test
      {"opensora1.2-tiny", tiny},
      {"opensora1.3-tiny", as_1_3(tiny, 4, 2)},
  };
  return table;
}

}  // namespace tessera::models::stdit
