#include "tessera/models/hunyuan/files.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/check.h"
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

namespace {

constexpr NamePattern kOfficial[] = {
    {"txt_in.individual_token_refiner.blocks.#.self_attn_q.*",
     "txt_in.individual_token_refiner.blocks.#.self_attn_qkv.0of3.*"},
    {"txt_in.individual_token_refiner.blocks.#.self_attn_k.*",
     "txt_in.individual_token_refiner.blocks.#.self_attn_qkv.1of3.*"},
    {"txt_in.individual_token_refiner.blocks.#.self_attn_v.*",
     "txt_in.individual_token_refiner.blocks.#.self_attn_qkv.2of3.*"},
    {"final_layer.shift.*", "final_layer.adaLN_modulation.1.0of2.*"},
    {"final_layer.scale.*", "final_layer.adaLN_modulation.1.1of2.*"},
};

constexpr NamePattern kDiffusers[] = {
    {"img_in.proj.*", "x_embedder.proj.*"},
    {"time_in.mlp.0.*", "time_embed.timestep_embedder.linear_1.*"},
    {"time_in.mlp.2.*", "time_embed.timestep_embedder.linear_2.*"},
    {"time_r_in.mlp.0.*", "time_embed.timestep_embedder_r.linear_1.*"},
    {"time_r_in.mlp.2.*", "time_embed.timestep_embedder_r.linear_2.*"},
    {"cond_type_embedding.*", "cond_type_embed.*"},
    {"txt_in.input_embedder.*", "context_embedder.proj_in.*"},
    {"txt_in.t_embedder.mlp.0.*", "context_embedder.time_text_embed.timestep_embedder.linear_1.*"},
    {"txt_in.t_embedder.mlp.2.*", "context_embedder.time_text_embed.timestep_embedder.linear_2.*"},
    {"txt_in.c_embedder.*", "context_embedder.time_text_embed.text_embedder.*"},
    {"txt_in.individual_token_refiner.blocks.#.adaLN_modulation.1.*",
     "context_embedder.token_refiner.refiner_blocks.#.norm_out.linear.*"},
    {"txt_in.individual_token_refiner.blocks.#.self_attn_q.*",
     "context_embedder.token_refiner.refiner_blocks.#.attn.to_q.*"},
    {"txt_in.individual_token_refiner.blocks.#.self_attn_k.*",
     "context_embedder.token_refiner.refiner_blocks.#.attn.to_k.*"},
    {"txt_in.individual_token_refiner.blocks.#.self_attn_v.*",
     "context_embedder.token_refiner.refiner_blocks.#.attn.to_v.*"},
    {"txt_in.individual_token_refiner.blocks.#.self_attn_proj.*",
     "context_embedder.token_refiner.refiner_blocks.#.attn.to_out.0.*"},
    {"txt_in.individual_token_refiner.blocks.#.mlp.fc1.*",
     "context_embedder.token_refiner.refiner_blocks.#.ff.net.0.proj.*"},
    {"txt_in.individual_token_refiner.blocks.#.mlp.fc2.*",
     "context_embedder.token_refiner.refiner_blocks.#.ff.net.2.*"},
    {"txt_in.individual_token_refiner.blocks.#.*", "context_embedder.token_refiner.refiner_blocks.#.*"},
    {"byt5_in.layernorm.*", "context_embedder_2.norm.*"},
    {"byt5_in.fc1.*", "context_embedder_2.linear_1.*"},
    {"byt5_in.fc2.*", "context_embedder_2.linear_2.*"},
    {"byt5_in.fc3.*", "context_embedder_2.linear_3.*"},
    {"vision_in.proj.0.*", "image_embedder.norm_in.*"},
    {"vision_in.proj.1.*", "image_embedder.linear_1.*"},
    {"vision_in.proj.3.*", "image_embedder.linear_2.*"},
    {"vision_in.proj.4.*", "image_embedder.norm_out.*"},
    {"double_blocks.#.img_mod.linear.*", "transformer_blocks.#.norm1.linear.*"},
    {"double_blocks.#.img_attn_q.*", "transformer_blocks.#.attn.to_q.*"},
    {"double_blocks.#.img_attn_k.*", "transformer_blocks.#.attn.to_k.*"},
    {"double_blocks.#.img_attn_v.*", "transformer_blocks.#.attn.to_v.*"},
    {"double_blocks.#.img_attn_q_norm.*", "transformer_blocks.#.attn.norm_q.*"},
    {"double_blocks.#.img_attn_k_norm.*", "transformer_blocks.#.attn.norm_k.*"},
    {"double_blocks.#.img_attn_proj.*", "transformer_blocks.#.attn.to_out.0.*"},
    {"double_blocks.#.img_mlp.fc1.*", "transformer_blocks.#.ff.net.0.proj.*"},
    {"double_blocks.#.img_mlp.fc2.*", "transformer_blocks.#.ff.net.2.*"},
    {"double_blocks.#.txt_mod.linear.*", "transformer_blocks.#.norm1_context.linear.*"},
    {"double_blocks.#.txt_attn_q.*", "transformer_blocks.#.attn.add_q_proj.*"},
    {"double_blocks.#.txt_attn_k.*", "transformer_blocks.#.attn.add_k_proj.*"},
    {"double_blocks.#.txt_attn_v.*", "transformer_blocks.#.attn.add_v_proj.*"},
    {"double_blocks.#.txt_attn_q_norm.*", "transformer_blocks.#.attn.norm_added_q.*"},
    {"double_blocks.#.txt_attn_k_norm.*", "transformer_blocks.#.attn.norm_added_k.*"},
    {"double_blocks.#.txt_attn_proj.*", "transformer_blocks.#.attn.to_add_out.*"},
    {"double_blocks.#.txt_mlp.fc1.*", "transformer_blocks.#.ff_context.net.0.proj.*"},
    {"double_blocks.#.txt_mlp.fc2.*", "transformer_blocks.#.ff_context.net.2.*"},
    // the scale comes first there
    {"final_layer.scale.*", "norm_out.linear.0of2.*"},
    {"final_layer.shift.*", "norm_out.linear.1of2.*"},
    {"final_layer.linear.*", "proj_out.*"},
};

/// ComfyUI's, which has HunyuanVideo in the blocks of Flux.
constexpr NamePattern kComfyui[] = {
    {"time_in.mlp.0.*", "time_in.in_layer.*"},
    {"time_in.mlp.2.*", "time_in.out_layer.*"},
    {"time_r_in.mlp.0.*", "time_r_in.in_layer.*"},
    {"time_r_in.mlp.2.*", "time_r_in.out_layer.*"},
    {"txt_in.t_embedder.mlp.0.*", "txt_in.t_embedder.in_layer.*"},
    {"txt_in.t_embedder.mlp.2.*", "txt_in.t_embedder.out_layer.*"},
    {"txt_in.c_embedder.linear_1.*", "txt_in.c_embedder.in_layer.*"},
    {"txt_in.c_embedder.linear_2.*", "txt_in.c_embedder.out_layer.*"},
    {"txt_in.individual_token_refiner.blocks.#.self_attn_q.*",
     "txt_in.individual_token_refiner.blocks.#.self_attn.qkv.0of3.*"},
    {"txt_in.individual_token_refiner.blocks.#.self_attn_k.*",
     "txt_in.individual_token_refiner.blocks.#.self_attn.qkv.1of3.*"},
    {"txt_in.individual_token_refiner.blocks.#.self_attn_v.*",
     "txt_in.individual_token_refiner.blocks.#.self_attn.qkv.2of3.*"},
    {"txt_in.individual_token_refiner.blocks.#.self_attn_proj.*",
     "txt_in.individual_token_refiner.blocks.#.self_attn.proj.*"},
    {"txt_in.individual_token_refiner.blocks.#.mlp.fc1.*", "txt_in.individual_token_refiner.blocks.#.mlp.0.*"},
    {"txt_in.individual_token_refiner.blocks.#.mlp.fc2.*", "txt_in.individual_token_refiner.blocks.#.mlp.2.*"},
    {"double_blocks.#.img_mod.linear.*", "double_blocks.#.img_mod.lin.*"},
    {"double_blocks.#.img_attn_q_norm.weight", "double_blocks.#.img_attn.norm.query_norm.scale"},
    {"double_blocks.#.img_attn_k_norm.weight", "double_blocks.#.img_attn.norm.key_norm.scale"},
    {"double_blocks.#.img_attn_q.*", "double_blocks.#.img_attn.qkv.0of3.*"},
    {"double_blocks.#.img_attn_k.*", "double_blocks.#.img_attn.qkv.1of3.*"},
    {"double_blocks.#.img_attn_v.*", "double_blocks.#.img_attn.qkv.2of3.*"},
    {"double_blocks.#.img_attn_proj.*", "double_blocks.#.img_attn.proj.*"},
    {"double_blocks.#.img_mlp.fc1.*", "double_blocks.#.img_mlp.0.*"},
    {"double_blocks.#.img_mlp.fc2.*", "double_blocks.#.img_mlp.2.*"},
    {"double_blocks.#.txt_mod.linear.*", "double_blocks.#.txt_mod.lin.*"},
    {"double_blocks.#.txt_attn_q_norm.weight", "double_blocks.#.txt_attn.norm.query_norm.scale"},
    {"double_blocks.#.txt_attn_k_norm.weight", "double_blocks.#.txt_attn.norm.key_norm.scale"},
    {"double_blocks.#.txt_attn_q.*", "double_blocks.#.txt_attn.qkv.0of3.*"},
    {"double_blocks.#.txt_attn_k.*", "double_blocks.#.txt_attn.qkv.1of3.*"},
    {"double_blocks.#.txt_attn_v.*", "double_blocks.#.txt_attn.qkv.2of3.*"},
    {"double_blocks.#.txt_attn_proj.*", "double_blocks.#.txt_attn.proj.*"},
    {"double_blocks.#.txt_mlp.fc1.*", "double_blocks.#.txt_mlp.0.*"},
    {"double_blocks.#.txt_mlp.fc2.*", "double_blocks.#.txt_mlp.2.*"},
    {"final_layer.shift.*", "final_layer.adaLN_modulation.1.0of2.*"},
    {"final_layer.scale.*", "final_layer.adaLN_modulation.1.1of2.*"},
};

const ForeignNames& names() {
  static const ForeignNames all{.diffusers = {{std::begin(kDiffusers), std::end(kDiffusers)}},
                                .official = {{std::begin(kOfficial), std::end(kOfficial)}},
                                .fused = {{std::begin(kComfyui), std::end(kComfyui)}}};
  return all;
}

constexpr const char *kPatchWeight = "img_in.proj.weight", *kHeadNorm = "double_blocks.0.img_attn_q_norm.weight",
                     *kUpWeight = "double_blocks.0.img_mlp.fc1.weight",
                     *kCaptionWeight = "txt_in.input_embedder.weight", *kGlyphWeight = "byt5_in.fc1.weight",
                     *kPictureWeight = "vision_in.proj.1.weight";

/// The sizes that tensors tell.
Config sizes_of(const Shapes& ours) {
  Config c;
  c.hidden_size = size_of(ours, kPatchWeight, 0);
  const int64_t head = size_of(ours, kHeadNorm, 0);
  c.num_heads = head > 0 ? c.hidden_size / head : 0;
  if (head != Config().head_dim()) c.axes = {};
  c.depth = 0;
  while (ours.count("double_blocks." + std::to_string(c.depth) + ".img_attn_q_norm.weight") > 0) ++c.depth;
  c.channels = size_of(ours, "final_layer.linear.weight", 0);
  if (c.hidden_size > 0) c.mlp_ratio = size_of(ours, kUpWeight, 0) / c.hidden_size;
  c.text_dim = size_of(ours, kCaptionWeight, 1);
  c.glyph_hidden = size_of(ours, kGlyphWeight, 0), c.glyph_dim = size_of(ours, kGlyphWeight, 1);
  c.image_dim = size_of(ours, kPictureWeight, 1);
  c.meanflow = ours.count("time_r_in.mlp.0.weight") > 0;
  return c;
}

std::string preset_of(const Shapes& ours) {
  const Config c = sizes_of(ours);
  for (const auto& [preset, known] : presets()) {
    Config same = c;
    same.axes = known.axes, same.theta = known.theta;
    same.text_len = known.text_len, same.glyph_len = known.glyph_len, same.image_len = known.image_len;
    if (same == known) return preset;
  }
  return {};
}

/// The program's form, or diffusers'.
Json config_json(const ConfigSource& source) {
  for (const char* tensor : {kPatchWeight, kHeadNorm, kUpWeight, kCaptionWeight, kGlyphWeight, kPictureWeight})
    source.size(tensor, 0);
  Config c = sizes_of(source.size.shapes);
  check_heads(c.num_heads, c.mlp_ratio, source.size(kHeadNorm, 0), source.size(kUpWeight, 0), c.hidden_size);
  if (!source.given.json.empty()) {
    const Json whole = source.given.over(to_json(c), "mm_double_blocks_depth", "num_layers");
    const Config given = parse_config(whole.dump(), source.file, source.size.shapes);
    c.axes = given.axes, c.theta = given.theta;
    c.text_len = given.text_len, c.glyph_len = given.glyph_len, c.image_len = given.image_len;
  }
  check_rotation(c.axes, c.head_dim());
  return Json::parse(source.diffusers ? to_diffusers_json(c) : to_json(c));
}

/// How heads of another width than the released ones are rotated, and how many rows inputs have.
std::vector<std::string> untold(const Shapes& ours, const Identity&) {
  return sizes_of(ours).axes[0] == 0 ? std::vector<std::string>{"rope_dim_list", "text_len", "glyph_len", "image_len"}
                                     : std::vector<std::string>();
}

}  // namespace

std::string foreign_tensor(const std::string& name, const std::string& naming) {
  if (naming == "diffusers") return to_foreign(names().diffusers, name);
  if (naming == "fused") return to_foreign(names().fused, name);
  return naming == "tessera" ? name : to_foreign(names().official, name);
}

WeightForm weight_form() {
  return {.kind = ModelKind::denoiser,
          .title = "HunyuanVideo-1.5 transformers",
          .model = "hunyuan1.5",
          .variant = "t2v",
          .marks = {kPatchWeight, kCaptionWeight, kGlyphWeight, kPictureWeight, "double_blocks.0.img_attn_q.weight",
                    "double_blocks.0.txt_attn_q.weight", "final_layer.shift.weight"},
          .names = names(),
          .refine =
              [](const Shapes& ours, Identity& identity) {
                const std::string preset = preset_of(ours);
                if (!preset.empty()) identity.model = preset;
              },
          .config = config_json,
          .untold = untold,
          .config_marks = {"mm_double_blocks_depth", "rope_axes_dim"}};
}

}  // namespace tessera::models::hunyuan
