#include "tessera/models/wan/config.h"

#include <algorithm>
#include <cmath>

#include "tessera/families/wan.h"
#include "tessera/models/common/config_reader.h"

namespace tessera::models::wan {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<Type, std::string_view> kTypes[] = {
    {Type::t2v, "t2v"}, {Type::i2v, "i2v"}, {Type::flf2v, "flf2v"}, {Type::ti2v, "ti2v"}};
constexpr const char* kSecondClass = "Wan2_2Transformer3DModel";  // VideoX-Fun's, which has no image branch

/// The type that follows from the sizes.
Type likely_type(const Config& c) { return c.in_dim == 2 * c.out_dim + kMaskChannels ? Type::i2v : Type::t2v; }

Type parse_type(const ConfigReader& json, Type absent) {
  const std::string text = json.text("model_type", std::string(name(absent)));
  std::string known;
  for (const auto& [type, word] : kTypes) {
    if (word == text) return type;
    known += (known.empty() ? "" : ", ") + std::string(word);
  }
  json.fail("model_type is \"" + text + "\", supported are " + known);
}

Config parse_diffusers(const ConfigReader& json) {
  json.expect("qk_norm", "rms_norm_across_heads");
  Config c;
  c.num_heads = json.size("num_attention_heads");
  c.dim = c.num_heads * json.size("attention_head_dim");
  json.expect_narrow("num_attention_heads times attention_head_dim", static_cast<double>(c.dim));
  c.in_dim = json.size("in_channels", c.in_dim);
  c.out_dim = json.size("out_channels", c.out_dim);
  c.image_dim = json.has("image_dim") ? json.size("image_dim") : 0;
  if (c.has_image_branch()) json.expect("added_kv_proj_dim", c.dim);
  Type type = json.has("pos_embed_seq_len") ? Type::flf2v : likely_type(c);
  if (type == Type::t2v && c.in_dim == 48) type = Type::ti2v;  // only the pipeline's config has it (expand_timesteps)
  c.type = parse_type(json, type);
  if (json.has("pos_embed_seq_len")) c.image_len = json.size("pos_embed_seq_len") / 2;
  return c;
}

bool is_expert_folder(const std::string& file) {
  return std::ranges::any_of(families::wan().experts,
                             [&](const auto& expert) { return file.find(expert.folder) != file.npos; });
}

Config parse_official(const ConfigReader& json, const std::string& file) {
  json.expect("qk_norm", true);
  json.expect("window_size", {-1, -1});
  Config c;
  c.dim = json.size("dim");
  c.num_heads = json.size("num_heads");
  c.in_dim = json.size("in_dim", c.in_dim);
  c.out_dim = json.size("out_dim", c.out_dim);
  c.type = parse_type(json, likely_type(c));
  // released files leave the image branch out; fields of a recipe are complete
  const bool second = json.text("_class_name", "") == kSecondClass || json.text("cross_attn_type", "") == "cross_attn";
  const bool usual_branch =
      json.has("_class_name") && c.takes_images() && c.type != Type::ti2v && !second && !is_expert_folder(file);
  if (json.has("image_dim"))
    c.image_dim = json.size("image_dim");
  else if (usual_branch && !json.is_null("image_dim"))
    c.image_dim = kClipDim;
  // fields of a recipe are numbers alone; a file has them without their switch, too
  const bool recipe = file == kRecipeConfig;
  if (json.flag("add_ref_conv", recipe && json.has("in_dim_ref_conv")) || json.flag("has_ref_conv", false))
    c.ref_dim = json.size("in_dim_ref_conv", c.out_dim);
  if (json.flag("add_control_adapter", recipe && json.has("in_dim_control_adapter"))) {
    c.camera_dim = json.size("in_dim_control_adapter", kCameraChannels);
    c.camera_scale = json.size("downscale_factor_control_adapter", c.camera_scale);
  }
  // without their switch these say nothing, and the last two are arguments that VideoX-Fun's class does not use
  json.without_effect(
      {"in_dim_ref_conv", "in_dim_control_adapter", "downscale_factor_control_adapter", "in_channels", "hidden_size"});
  return c;
}

/// The channels of each of the adapter's cells, which its first convolution sees side by side.
void take_camera(const ConfigReader& json, int64_t channels, Config& c) {
  if (c.camera_dim == 0) c.camera_dim = kCameraChannels;
  const auto scale = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(channels / c.camera_dim))));
  json.expect_narrow("the width of control_adapter.conv.weight", static_cast<double>(channels));
  if (scale < 1 || c.camera_dim * scale * scale != channels)
    json.fail("control_adapter.conv.weight has " + std::to_string(channels) + " channels, expected " +
              std::to_string(c.camera_dim) + " times the square of a number of pixels");
  c.camera_scale = scale;
}

/// Sizes that only the tensors determine.
void take_from_weights(const ConfigReader& json, const Shapes& weights, Config& c) {
  if (weights.empty() || !c.takes_images()) return;
  const auto channels_of = [&](const char* name) {
    const auto found = weights.find(name);
    return found == weights.end() || found->second.size() != 4 ? 0 : found->second[1];
  };
  c.ref_dim = channels_of("ref_conv.weight");
  json.expect_narrow("the width of ref_conv.weight", static_cast<double>(c.ref_dim));
  if (const int64_t channels = channels_of("control_adapter.conv.weight"); channels > 0)
    take_camera(json, channels, c);
  else
    c.camera_dim = 0;
  const auto branch = weights.find("img_emb.proj.1.weight");
  c.image_dim = branch == weights.end() || branch->second.empty() ? 0 : branch->second.back();
  json.expect_narrow("the width of img_emb.proj.1.weight", static_cast<double>(c.image_dim));
  const auto positions = weights.find("img_emb.emb_pos");
  if (positions == weights.end() || positions->second.size() != 3) return;
  c.type = Type::flf2v;
  c.image_len = positions->second[1] / 2;
  json.expect_narrow("the length of img_emb.emb_pos", static_cast<double>(c.image_len));
}

void check_sizes(const ConfigReader& json, const Config& c) {
  const auto number = [](int64_t n) { return std::to_string(n); };
  if (c.dim % c.num_heads != 0)
    json.fail("dim " + number(c.dim) + " is not a multiple of num_heads " + number(c.num_heads));
  if (c.head_dim() % 2 != 0 || c.head_dim() < 6)
    json.fail("a head of " + number(c.head_dim()) +
              " channels cannot be rotated by 3 axes: it must be even and at least 6");
  if (c.freq_dim % 2 != 0) json.fail("freq_dim " + number(c.freq_dim) + " is odd");
  const std::string type(name(c.type));
  const bool wants_images = c.type == Type::i2v || c.type == Type::flf2v;
  const int64_t picture = kMaskChannels + c.out_dim, control = 2 * c.out_dim, y = c.y_dim();
  const bool fun = c.type == Type::i2v && (y == control || (y == c.out_dim && c.camera_dim > 0));
  if ((wants_images || (c.type == Type::ti2v && y != 0)) && !fun && y != picture &&
      (c.type == Type::flf2v || y != picture + c.out_dim))
    json.fail("in_dim " + number(c.in_dim) + ": " + type + " takes the noisy latent, " + number(kMaskChannels) +
              " mask channels and the picture's latent, with out_dim " + number(c.out_dim) + " that is " +
              number(c.out_dim + picture) + "; with the latent of a control video " + number(control + picture) +
              (c.type == Type::i2v ? ", or " + number(c.out_dim + control) + " without a mask" : ""));
  if (c.type == Type::t2v && y != 0)
    json.fail("in_dim " + number(c.in_dim) + " and out_dim " + number(c.out_dim) + " differ: that is no " + type +
              " model; an image-to-video model has model_type i2v or flf2v");
  if (!c.takes_images() && c.has_extras())
    json.fail("add_ref_conv or add_control_adapter is set, and in_dim " + number(c.in_dim) +
              " has no channels for conditions: no release of VideoX-Fun is so");
  if (c.type != Type::i2v && c.type != Type::flf2v && c.has_image_branch())
    json.fail("image_dim is set, and " + type + " takes no pictures");
  if (c.type == Type::flf2v && !c.has_image_branch()) json.fail("flf2v without image_dim: it needs its image branch");
}

}  // namespace

std::string_view name(Type type) {
  for (const auto& [known, word] : kTypes)
    if (known == type) return word;
  return "";
}

Config parse_config(std::string_view text, const std::string& file, const Shapes& weights) {
  const ConfigReader json(text, file);
  Config c = json.has("num_attention_heads") ? parse_diffusers(json) : parse_official(json, file);
  json.expect("cross_attn_norm", true);
  json.expect("patch_size", {c.patch[0], c.patch[1], c.patch[2]});
  c.ffn_dim = json.size("ffn_dim");
  c.num_layers = json.size("num_layers");
  c.freq_dim = json.size("freq_dim", c.freq_dim);
  c.text_dim = json.size("text_dim", c.text_dim);
  c.text_len = json.size("text_len", c.text_len);
  c.eps = json.above_zero("eps", c.eps);
  c.image_len = json.size("image_len", c.image_len);
  take_from_weights(json, weights, c);
  check_sizes(json, c);
  return c;
}

std::vector<int64_t> block_numbers(const ConfigReader& json, const char* key, int64_t num_layers) {
  std::vector<int64_t> layers;
  for (const double layer : json.reals(key, {})) {
    const bool there = layer >= 0 && layer < static_cast<double>(num_layers) && layer == std::floor(layer);
    layers.push_back(there ? static_cast<int64_t>(layer) : -1);
  }
  const bool rising = std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) == layers.end();
  if (layers.empty() || !rising || layers.front() < 0)
    json.fail(std::string(key) + ": expected rising numbers of blocks, 0 to " + std::to_string(num_layers - 1));
  return layers;
}

std::string to_json(const Config& c) {
  const Config usual;
  Json json = {{"_class_name", "WanModel"},
               {"model_type", name(c.type)},
               {"text_len", c.text_len},
               {"in_dim", c.in_dim},
               {"dim", c.dim},
               {"ffn_dim", c.ffn_dim},
               {"freq_dim", c.freq_dim},
               {"out_dim", c.out_dim},
               {"num_heads", c.num_heads},
               {"num_layers", c.num_layers},
               {"eps", c.eps}};
  if (c.text_dim != usual.text_dim) json["text_dim"] = c.text_dim;
  // official files leave it out, so that only the tensors decide whether there is an image branch
  if (c.takes_images()) json["image_dim"] = c.has_image_branch() ? Json(c.image_dim) : Json();
  if (c.image_len != usual.image_len) json["image_len"] = c.image_len;
  if (c.ref_dim > 0) json["add_ref_conv"] = true, json["in_dim_ref_conv"] = c.ref_dim;
  if (c.camera_dim > 0) {
    json["add_control_adapter"] = true;
    json["in_dim_control_adapter"] = c.camera_dim;
    json["downscale_factor_control_adapter"] = c.camera_scale;
  }
  return json.dump(2) + "\n";
}

const std::vector<std::pair<std::string, Config>>& presets() {
  static const Config k14b = {.dim = 5120, .ffn_dim = 13824, .num_heads = 40, .num_layers = 40};
  static const Config tiny = {.dim = 48,
                              .ffn_dim = 80,
                              .num_heads = 2,
                              .num_layers = 2,
                              .in_dim = 4,
                              .out_dim = 4,
                              .text_dim = 20,
                              .text_len = 6,
                              .freq_dim = 32};
  const auto image_to_video = [](Config c, Type type, int64_t image_dim) {
    c.type = type;
    c.in_dim = 2 * c.out_dim + kMaskChannels;
    c.image_dim = image_dim;
    return c;
  };
  const auto tiny_with_clip = [&](Type type) {
    Config c = image_to_video(tiny, type, 24);
    c.image_len = 5;
    return c;
  };
  const auto tiny_ti2v = [] {
    Config c = tiny;
    c.type = Type::ti2v;
    return c;
  };
  // VideoX-Fun's: `more` channels of conditions beside the mask and the latent of given frames
  const auto fun = [](Config c, int64_t y, int64_t image_dim, bool reference = false, int64_t camera_scale = 0) {
    if (c.type == Type::t2v) c.type = Type::i2v;
    c.in_dim = c.out_dim + y;
    c.image_dim = image_dim;
    if (reference) c.ref_dim = c.out_dim;
    if (camera_scale > 0) c.camera_dim = kCameraChannels, c.camera_scale = camera_scale;
    return c;
  };
  static const Config k1b = {}, k5b = {.type = Type::ti2v,
                                       .dim = 3072,
                                       .ffn_dim = 14336,
                                       .num_heads = 24,
                                       .num_layers = 30,
                                       .in_dim = 48,
                                       .out_dim = 48};
  const auto tiny_fun = [&](Type type, int64_t y, int64_t image_dim, bool reference, int64_t camera_scale) {
    Config c = tiny;
    c.type = type;
    c.in_dim = c.out_dim = 6;
    c.image_len = image_dim > 0 ? 5 : c.image_len;
    return fun(c, y, image_dim, reference, camera_scale);
  };
  static const std::vector<std::pair<std::string, Config>> table = {
      {"wan2.1-t2v-1.3b", {}},
      {"wan2.1-t2v-14b", k14b},
      {"wan2.1-i2v-14b-480p", image_to_video(k14b, Type::i2v, kClipDim)},
      {"wan2.1-i2v-14b-720p", image_to_video(k14b, Type::i2v, kClipDim)},  // the same sizes, other weights
      {"wan2.1-flf2v-14b-720p", image_to_video(k14b, Type::flf2v, kClipDim)},
      {"wan2.2-t2v-a14b", k14b},  // each of the two experts
      {"wan2.2-i2v-a14b", image_to_video(k14b, Type::i2v, 0)},
      {"wan2.2-ti2v-5b", k5b},
      {"wan2.1-fun-1.3b-inp", fun(k1b, 20, kClipDim)},
      {"wan2.1-fun-14b-inp", fun(k14b, 20, kClipDim)},
      {"wan2.1-fun-1.3b-control", fun(k1b, 32, kClipDim)},
      {"wan2.1-fun-14b-control", fun(k14b, 32, kClipDim)},
      {"wan2.1-fun-v1.1-1.3b-control", fun(k1b, 32, kClipDim, true)},
      {"wan2.1-fun-v1.1-14b-control", fun(k14b, 32, kClipDim, true)},
      {"wan2.1-fun-v1.1-1.3b-control-camera", fun(k1b, 16, kClipDim, false, 8)},
      {"wan2.1-fun-v1.1-14b-control-camera", fun(k14b, 16, kClipDim, false, 8)},
      {"wan2.2-fun-a14b-inp", fun(k14b, 20, 0)},
      {"wan2.2-fun-a14b-control", fun(k14b, 36, 0, true)},
      {"wan2.2-fun-a14b-control-camera", fun(k14b, 20, 0, false, 8)},
      {"wan2.2-fun-5b-inp", fun(k5b, 52, 0)},
      {"wan2.2-fun-5b-control", fun(k5b, 100, 0, true)},
      {"wan2.2-fun-5b-control-camera", fun(k5b, 52, 0, false, 16)},
      // 101B parameters, of the shape of 14B: nobody has released one so large, docs/scaling.md plans it
      {"wan-101b", {.dim = 10240, .ffn_dim = 27648, .num_heads = 80, .num_layers = 72}},
      // 36M parameters: the model of docs/benchmarks.md
      {"wan-bench-36m",
       {.dim = 512, .ffn_dim = 2048, .num_heads = 8, .num_layers = 8, .text_dim = 512, .text_len = 64}},
      // 7M parameters, for make demo: latents of the built-in wavelet, text of umt5-demo. The width must be larger than
      // the 4 * 48 values of a token: with 96 channels the noise cannot pass, and the loss stays near 1.
      {"wan-demo",
       {.dim = 256,
        .ffn_dim = 1024,
        .num_heads = 4,
        .num_layers = 6,
        .in_dim = 48,
        .out_dim = 48,
        .text_dim = 64,
        .text_len = 32}},
      // small enough for a unit test, every size different
      {"wan-tiny", tiny},
      {"wan-tiny-i2v", tiny_with_clip(Type::i2v)},
      {"wan-tiny-flf2v", tiny_with_clip(Type::flf2v)},
      {"wan-tiny-i2v-2.2", image_to_video(tiny, Type::i2v, 0)},
      {"wan-tiny-ti2v", tiny_ti2v()},
      // six channels: with four, a mask is as wide as a latent, and the layouts of Fun's conditions are not told apart
      {"wan-tiny-fun-control", tiny_fun(Type::i2v, 12, 24, true, 0)},
      {"wan-tiny-fun-camera", tiny_fun(Type::i2v, 6, 24, false, 8)},
      {"wan-tiny-fun-control-2.2", tiny_fun(Type::i2v, 16, 0, true, 0)},
      {"wan-tiny-fun-control-5b", tiny_fun(Type::ti2v, 16, 0, true, 0)},
  };
  return table;
}

Config preset_with(std::string_view name, int64_t num_layers) {
  const auto found = std::ranges::find(presets(), name, [](const auto& row) { return row.first; });
  check_internal(found != presets().end(), "models.wan", "there is no preset of this name");
  Config c = found->second;
  if (num_layers > 0) c.num_layers = num_layers;
  return c;
}

bool says(std::string_view text, const char* type, std::initializer_list<const char*> classes, const char* field) {
  const auto json = json_or_nothing(text);
  if (!json.is_object()) return false;
  const auto is = [&](const char* key, const char* value) { return json.contains(key) && json[key] == value; };
  return is("model_type", type) || (field && json.contains(field)) ||
         std::ranges::any_of(classes, [&](const char* name) { return is("_class_name", name); });
}

Config parse_base(std::string_view text, const std::string& file, const char* type, const Json& usual) {
  Json base = parse_ordered_json(text, file);
  base["model_type"] = type;
  for (const auto& [key, value] : usual.items())
    if (!base.contains(key)) base[key] = value;
  return parse_config(base.dump(), file);
}

Json base_json(const Config& base, const char* type, const char* class_name) {
  Json json = Json::parse(to_json(base));
  json["_class_name"] = class_name;
  json["model_type"] = type;
  return json;
}

double released_boundary(Type type) { return type == Type::i2v || type == Type::flf2v ? 0.9 : 0.875; }

namespace {

constexpr int64_t kReleasedLayers = 40;
const std::vector<int64_t> kReleasedInjectors = {0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39};

std::vector<int64_t> parse_layers(const ConfigReader& json, int64_t num_layers) {
  constexpr const char* kKey = "audio_inject_layers";
  if (!json.has(kKey) && num_layers == kReleasedLayers) return kReleasedInjectors;
  return block_numbers(json, kKey, num_layers);
}

/// Small enough for a unit test.
S2vConfig tiny() {
  return {.base = preset_with("wan-tiny", 3), .cond_dim = 4, .audio_dim = 32, .inject_after = {0, 2}};
}

/// 12M parameters, for runs of some minutes: latents of the built-in wavelet, text of umt5-demo, audio of wav2vec-demo.
S2vConfig demo() {
  return {.base = preset_with("wan-demo"), .cond_dim = 48, .audio_dim = 32, .inject_after = {0, 2, 4}};
}

}  // namespace

bool is_s2v_config(std::string_view text) { return says(text, "s2v", {"WanModel_S2V"}); }

S2vConfig parse_s2v_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  json.expect("enable_adain", true);
  json.expect("adain_mode", "attn_norm");
  json.expect("zero_timestep", true);
  json.expect("enable_motioner", false);
  json.expect("add_last_motion", true);
  json.expect("enable_tsm", false);
  json.expect("enable_framepack", true);
  json.expect("framepack_drop_mode", "padd");
  json.expect("trainable_token_pos_emb", false);
  json.without_effect({"zero_init", "motion_token_num"});  // of training, and of the motioner
  S2vConfig c{.base = parse_base(text, file, "t2v"), .inject_after = {}};
  c.cond_dim = json.size("cond_dim", c.cond_dim);
  c.audio_dim = json.size("audio_dim", c.audio_dim);
  c.num_audio_token = json.size("num_audio_token", c.num_audio_token);
  c.inject_after = parse_layers(json, c.base.num_layers);
  if (c.base.dim % 4 != 0) json.fail("dim " + std::to_string(c.base.dim) + " is not a multiple of 4");
  return c;
}

std::string to_json(const S2vConfig& c) {
  Json json = base_json(c.base, "s2v", "WanModel_S2V");
  json["cond_dim"] = c.cond_dim;
  json["audio_dim"] = c.audio_dim;
  json["num_audio_token"] = c.num_audio_token;
  json["audio_inject_layers"] = c.inject_after;
  json["enable_adain"] = true;
  json["adain_mode"] = "attn_norm";
  json["zero_init"] = true;
  json["zero_timestep"] = true;
  json["enable_motioner"] = false;
  json["add_last_motion"] = true;
  json["enable_tsm"] = false;
  json["enable_framepack"] = true;
  json["framepack_drop_mode"] = "padd";
  return json.dump(2) + "\n";
}

const std::vector<std::pair<std::string, S2vConfig>>& s2v_presets() {
  static const std::vector<std::pair<std::string, S2vConfig>> table = {
      {"wan2.2-s2v-14b", {.base = preset_with("wan2.2-t2v-a14b"), .inject_after = kReleasedInjectors}},
      {"wan-s2v-demo", demo()},
      {"wan-s2v-tiny", tiny()}};
  return table;
}

}  // namespace tessera::models::wan
