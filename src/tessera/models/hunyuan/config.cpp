#include "tessera/models/hunyuan/config.h"

#include <algorithm>
#include <numeric>

#include "tessera/models/common/config_reader.h"
#include "tessera/models/common/identity.h"

namespace tessera::models::hunyuan {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kClass = "HunyuanVideo_1_5_DiffusionTransformer",
                           kDiffusersClass = "HunyuanVideo15Transformer3DModel";

std::array<int64_t, 3> parse_axes(const ConfigReader& json, const char* key, const std::array<int64_t, 3>& absent) {
  const std::vector<int64_t> axes = json.sizes(key, {absent.begin(), absent.end()});
  if (axes.size() != 3) json.fail(std::string(key) + " must have three numbers: of frames, rows and columns");
  return {axes[0], axes[1], axes[2]};
}

int64_t parse_ratio(const ConfigReader& json, const char* key, int64_t absent) {
  const double ratio = json.real(key, static_cast<double>(absent));
  json.expect_narrow(key, ratio);
  if (ratio < 1 || std::floor(ratio) != ratio) json.fail(std::string(key) + " is no whole number from 1 on");
  return static_cast<int64_t>(ratio);
}

/// Most rows of an input, 0: the model of a test that never has it.
int64_t parse_rows(const ConfigReader& json, const char* key, int64_t absent) {
  const double rows = json.real(key, static_cast<double>(absent));
  if (rows < 0 || rows > static_cast<double>(ConfigReader::kMostSize) || std::floor(rows) != rows)
    json.fail(std::string(key) + " is no whole number from 0 to " + std::to_string(ConfigReader::kMostSize));
  return static_cast<int64_t>(rows);
}

/// What the released files say of nothing: sizes of inputs.
void parse_inputs(const ConfigReader& json, Config& c, const std::map<std::string, std::vector<int64_t>>& weights) {
  if (const int64_t hidden = size_of(weights, "byt5_in.fc1.weight", 0); hidden > 0) c.glyph_hidden = hidden;
  c.glyph_hidden = json.size("byt5_hidden_dim", c.glyph_hidden);
  c.text_len = json.size("text_len", c.text_len);
  c.glyph_len = parse_rows(json, "glyph_len", c.glyph_len);
  c.image_len = parse_rows(json, "image_len", c.image_len);
}

void check_sizes(const ConfigReader& json, const Config& c) {
  const auto number = [](int64_t n) { return std::to_string(n); };
  if (c.depth > ConfigReader::kMostLayers)
    json.fail("a depth of " + number(c.depth) + " blocks, expected at most " + number(ConfigReader::kMostLayers));
  json.expect_narrow("the width", static_cast<double>(c.hidden_size));
  json.expect_narrow("the feed-forward's width", static_cast<double>(c.mlp_ratio) * static_cast<double>(c.hidden_size));
  if (c.hidden_size % c.num_heads != 0)
    json.fail("hidden_size " + number(c.hidden_size) + " is not a multiple of " + number(c.num_heads) + " heads");
  const int64_t rotated = std::accumulate(c.axes.begin(), c.axes.end(), int64_t{0});
  if (rotated != c.head_dim())
    json.fail("the axes have " + number(rotated) + " channels together, a head has " + number(c.head_dim()));
  for (const int64_t axis : c.axes)
    if (axis % 2 != 0) json.fail("an axis has " + number(axis) + " channels: they are rotated in pairs");
}

Config parse_diffusers(const ConfigReader& json, const std::map<std::string, std::vector<int64_t>>& weights) {
  Config c;
  for (const char* one : {"patch_size", "patch_size_t"}) json.expect(one, 1);
  json.expect("qk_norm", "rms_norm");
  json.expect("num_refiner_layers", kRefiners);
  json.without_effect({"target_size", "task_type"});  // of its pipeline
  c.channels = json.size("out_channels", c.channels);
  json.expect("in_channels", c.in_channels());
  c.num_heads = json.size("num_attention_heads", c.num_heads);
  c.hidden_size = c.num_heads * json.size("attention_head_dim", c.head_dim());
  c.depth = json.size("num_layers", c.depth);
  c.mlp_ratio = parse_ratio(json, "mlp_ratio", c.mlp_ratio);
  c.axes = parse_axes(json, "rope_axes_dim", c.axes);
  c.theta = parse_ratio(json, "rope_theta", c.theta);
  c.text_dim = json.size("text_embed_dim", c.text_dim);
  c.glyph_dim = json.size("text_embed_2_dim", c.glyph_dim);
  c.image_dim = json.size("image_embed_dim", c.image_dim);
  c.meanflow = json.flag("use_meanflow", c.meanflow);
  parse_inputs(json, c, weights);
  check_sizes(json, c);
  return c;
}

}  // namespace

Config parse_config(std::string_view text, const std::string& file,
                    const std::map<std::string, std::vector<int64_t>>& weights) {
  const ConfigReader json(text, file);
  const std::string type = json.text("_class_name", std::string(kClass));
  if (type == kDiffusersClass) return parse_diffusers(json, weights);
  if (type != kClass)
    json.fail("_class_name is \"" + type + "\": supported are " + std::string(kClass) + " and " +
              std::string(kDiffusersClass));
  Config c;
  json.expect("patch_size", {1, 1, 1});
  json.expect("mm_single_blocks_depth", 0);
  json.expect("guidance_embed", false);
  for (const char* has : {"concat_condition", "glyph_byT5_v2", "use_cond_type_embedding", "qk_norm", "qkv_bias"})
    json.expect(has, true);
  json.expect("vision_projection", "linear");
  json.expect("text_projection", "single_refiner");
  json.expect("mlp_act_type", "gelu_tanh");
  json.expect("qk_norm_type", "rms");
  json.expect_absent("text_pool_type", "a model that takes a pooled text is not supported");
  json.without_effect({"attn_mode", "attn_param", "ideal_resolution", "ideal_task", "use_attention_mask"});
  c.hidden_size = json.size("hidden_size", c.hidden_size);
  c.num_heads = json.size("heads_num", c.num_heads);
  c.depth = json.size("mm_double_blocks_depth", c.depth);
  c.channels = json.size("in_channels", c.channels);
  json.expect("out_channels", c.channels);
  c.mlp_ratio = parse_ratio(json, "mlp_width_ratio", c.mlp_ratio);
  c.axes = parse_axes(json, "rope_dim_list", c.axes);
  c.theta = parse_ratio(json, "rope_theta", c.theta);
  c.text_dim = json.size("text_states_dim", c.text_dim);
  c.glyph_dim = json.size("byt5_in_dim", c.glyph_dim);
  c.image_dim = json.size("vision_states_dim", c.image_dim);
  c.meanflow = json.flag("use_meanflow", c.meanflow);
  parse_inputs(json, c, weights);
  check_sizes(json, c);
  return c;
}

namespace {

/// Fields of ours, of sizes that are constants in the programs.
void put_inputs(Json& json, const Config& c) {
  const Config usual;
  if (c.glyph_hidden != usual.glyph_hidden) json["byt5_hidden_dim"] = c.glyph_hidden;
  if (c.text_len != usual.text_len) json["text_len"] = c.text_len;
  if (c.glyph_len != usual.glyph_len) json["glyph_len"] = c.glyph_len;
  if (c.image_len != usual.image_len) json["image_len"] = c.image_len;
}

}  // namespace

std::string to_json(const Config& c) {
  Json json = {{"_class_name", kClass},
               {"concat_condition", true},
               {"glyph_byT5_v2", true},
               {"guidance_embed", false},
               {"heads_num", c.num_heads},
               {"hidden_size", c.hidden_size},
               {"in_channels", c.channels},
               {"mlp_width_ratio", c.mlp_ratio},
               {"mm_double_blocks_depth", c.depth},
               {"mm_single_blocks_depth", 0},
               {"out_channels", c.channels},
               {"patch_size", {1, 1, 1}},
               {"qk_norm", true},
               {"qkv_bias", true},
               {"rope_dim_list", c.axes},
               {"rope_theta", c.theta},
               {"text_pool_type", nullptr},
               {"text_states_dim", c.text_dim},
               {"use_cond_type_embedding", true},
               {"use_meanflow", c.meanflow},
               {"vision_projection", "linear"},
               {"vision_states_dim", c.image_dim}};
  if (c.glyph_dim != Config().glyph_dim) json["byt5_in_dim"] = c.glyph_dim;
  put_inputs(json, c);
  return json.dump(2) + "\n";
}

std::string to_diffusers_json(const Config& c) {
  Json json = {{"_class_name", kDiffusersClass},
               {"attention_head_dim", c.head_dim()},
               {"image_embed_dim", c.image_dim},
               {"in_channels", c.in_channels()},
               {"mlp_ratio", static_cast<double>(c.mlp_ratio)},
               {"num_attention_heads", c.num_heads},
               {"num_layers", c.depth},
               {"num_refiner_layers", kRefiners},
               {"out_channels", c.channels},
               {"patch_size", 1},
               {"patch_size_t", 1},
               {"qk_norm", "rms_norm"},
               {"rope_axes_dim", c.axes},
               {"rope_theta", static_cast<double>(c.theta)},
               {"text_embed_2_dim", c.glyph_dim},
               {"text_embed_dim", c.text_dim},
               {"use_meanflow", c.meanflow}};
  put_inputs(json, c);
  return json.dump(2) + "\n";
}

const std::vector<std::pair<std::string, Config>>& presets() {
  static const Config released;
  static const auto distilled = [](Config c) {
    c.meanflow = true;
    return c;
  };
  static const Config tiny = {.hidden_size = 32,
                              .num_heads = 4,
                              .depth = 2,
                              .channels = 4,
                              .axes = {4, 2, 2},
                              .text_dim = 64,
                              .glyph_dim = 32,
                              .glyph_hidden = 10,
                              .image_dim = 20,
                              .text_len = 6,
                              .glyph_len = 5,
                              .image_len = 4};
  static const std::vector<std::pair<std::string, Config>> table = {
      {"hunyuan1.5-480p-t2v", released},
      {"hunyuan1.5-480p-i2v", released},  // the same sizes, other weights
      {"hunyuan1.5-720p-t2v", released},
      {"hunyuan1.5-720p-i2v", released},
      {"hunyuan1.5-480p-i2v-step-distilled", distilled(released)},
      // 9M parameters, for runs of some minutes: latents of the built-in wavelet, and the small encoders of texts, quotes
      // and pictures
      {"hunyuan-demo",
       {.hidden_size = 256,
        .num_heads = 4,
        .depth = 4,
        .channels = 48,
        .axes = {16, 24, 24},
        .text_dim = 64,
        .glyph_dim = 32,
        .glyph_hidden = 64,
        .image_dim = 20,
        .text_len = 32,
        .glyph_len = 32,
        .image_len = 4}},
      // small enough for a unit test
      {"hunyuan-tiny", tiny},
      {"hunyuan-tiny-step-distilled", distilled(tiny)},
  };
  return table;
}

}  // namespace tessera::models::hunyuan
