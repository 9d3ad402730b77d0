#include "tessera/models/stdit/files.h"

#include "tessera/base/check.h"
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

namespace {

constexpr const char* kPatchWeight = "x_embedder.proj.weight";
constexpr const char* kHeadNorm = "spatial_blocks.0.attn.q_norm.weight";

/// The sizes that tensors tell. Windows and the rotation of the spatial blocks they do not: those are the release's.
Config sizes_of(const Shapes& ours, bool cond) {
  Config c;
  c.hidden_size = size_of(ours, kPatchWeight, 0);
  const int64_t head = std::max<int64_t>(size_of(ours, kHeadNorm, 0), 1);
  c.num_heads = c.hidden_size / head;
  while (ours.count("spatial_blocks." + std::to_string(c.depth) + ".scale_shift_table")) ++c.depth;
  while (c.depth > 0 && !ours.count("spatial_blocks." + std::to_string(c.depth - 1) + ".scale_shift_table")) --c.depth;
  c.in_channels = size_of(ours, kPatchWeight, 1);
  c.patch = size_of(ours, kPatchWeight, 3);
  c.caption_dim = size_of(ours, "y_embedder.y_proj.fc1.weight", 1);
  c.mlp_ratio = static_cast<double>(size_of(ours, "spatial_blocks.0.mlp.fc1.weight", 0)) /
                static_cast<double>(std::max<int64_t>(c.hidden_size, 1));
  c.pred_sigma = size_of(ours, "final_layer.linear.weight", 0) == 2 * c.in_channels * c.places();
  c.cond = c.spatial_rope = cond;
  if (cond) c.window = {8, 8, 0};
  return c;
}

std::string preset_of(const Shapes& ours, bool cond) {
  const Config c = sizes_of(ours, cond);
  for (const auto& [preset, known] : presets()) {
    Config same = c;
    same.caption_len = known.caption_len, same.window = known.window;
    if (same == known) return preset;
  }
  return {};
}

Json config_json(const ConfigSource& source, bool cond) {
  if (source.diffusers)
    throw UserError(Exit::input, "models.config", "diffusers has no class for this model",
                    "convert it to official names");
  for (const auto& [name, dim] : {std::pair(kPatchWeight, 0), {kHeadNorm, 0}, {"y_embedder.y_proj.fc1.weight", 1}})
    source.size(name, static_cast<size_t>(dim));
  Config c = sizes_of(source.size.shapes, cond);
  if (source.size.has("y_embedder.y_embedding")) c.caption_len = source.size("y_embedder.y_embedding", 0);
  Json whole = Json::parse(to_json(c));
  whole.merge_patch(source.given.json);
  if (cond && source.given.json.contains("kernel_size")) whole["kernel_size"] = source.given.json["kernel_size"];
  const Config given = parse_config(whole.dump(), source.file);
  c.caption_len = given.caption_len, c.input_sq_size = given.input_sq_size;
  c.window = given.window, c.spatial_rope = given.spatial_rope;
  return Json::parse(to_json(c));
}

template <bool cond>
std::vector<std::string> untold(const Shapes& ours, const Identity&) {
  if (!preset_of(ours, cond).empty()) return {};
  return cond ? std::vector<std::string>{"model_max_length", "kernel_size", "use_spatial_rope"}
              : std::vector<std::string>{"model_max_length"};
}

template <bool cond>
WeightForm form_of() {
  std::vector<std::string> marks = {kPatchWeight, "fps_embedder.mlp.0.weight", "spatial_blocks.0.attn.q.weight",
                                    "temporal_blocks.0.attn.q.weight"};
  if (cond) marks.emplace_back("x_embedder_cond.proj.weight");
  return {.kind = ModelKind::denoiser,
          .title = "Open-Sora 1 transformers",
          .model = "stdit3",
          .variant = cond ? "1.3" : "1.2",
          .marks = marks,
          .names = {.diffusers = {official_names()}, .official = {official_names()}},
          // the caption of no words, and the frequencies of a rotation
          .official_only = {"y_embedder.y_embedding", "rope.freqs"},
          .null_caption = "y_embedder.y_embedding",
          .refine =
              [](const Shapes& ours, Identity& identity) {
                const std::string preset = preset_of(ours, cond);
                if (!preset.empty()) identity.model = preset;
              },
          .config = [](const ConfigSource& source) { return config_json(source, cond); },
          .untold = untold<cond>,
          .config_marks = {"input_sq_size", "model_max_length", "kernel_size"}};
}

}  // namespace

const std::vector<NamePattern>& official_names() {
  static const std::vector<NamePattern> table = {
      {"spatial_blocks.#.attn.q.*", "spatial_blocks.#.attn.qkv.0of3.*"},
      {"spatial_blocks.#.attn.k.*", "spatial_blocks.#.attn.qkv.1of3.*"},
      {"spatial_blocks.#.attn.v.*", "spatial_blocks.#.attn.qkv.2of3.*"},
      {"spatial_blocks.#.cross_attn.k_linear.*", "spatial_blocks.#.cross_attn.kv_linear.0of2.*"},
      {"spatial_blocks.#.cross_attn.v_linear.*", "spatial_blocks.#.cross_attn.kv_linear.1of2.*"},
      {"temporal_blocks.#.attn.q.*", "temporal_blocks.#.attn.qkv.0of3.*"},
      {"temporal_blocks.#.attn.k.*", "temporal_blocks.#.attn.qkv.1of3.*"},
      {"temporal_blocks.#.attn.v.*", "temporal_blocks.#.attn.qkv.2of3.*"},
      {"temporal_blocks.#.cross_attn.k_linear.*", "temporal_blocks.#.cross_attn.kv_linear.0of2.*"},
      {"temporal_blocks.#.cross_attn.v_linear.*", "temporal_blocks.#.cross_attn.kv_linear.1of2.*"},
  };
  return table;
}

std::vector<WeightForm> weight_forms() { return {form_of<true>(), form_of<false>()}; }

}  // namespace tessera::models::stdit
