#include "tessera/models/sana/config.h"

#include <algorithm>

#include "tessera/models/common/config_reader.h"

namespace tessera::models::sana {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kTypes[] = {"image", "sprint", "video"};
constexpr std::string_view kImageClass = "SanaTransformer2DModel", kVideoClass = "SanaVideoTransformer3DModel";
constexpr int64_t kWanChannels = 16;  // of the latents of the one video model that is supported

bool is_video(const ConfigReader& json) {
  const std::string type = json.text("model_type", "");
  if (!type.empty() && std::ranges::find(kTypes, type) == std::end(kTypes))
    json.fail("model_type is \"" + type + "\", supported are image, sprint and video");
  return type == "video" || json.text("_class_name", "") == kVideoClass;
}

/// One number for height and width, or one for each axis.
std::array<int64_t, 3> parse_patch(const ConfigReader& json, bool video) {
  if (json.is_number("patch_size")) {
    const int64_t side = json.size("patch_size");
    return {1, side, side};
  }
  const std::vector<int64_t> sides =
      json.sizes("patch_size", video ? std::vector<int64_t>{1, 2, 2} : std::vector<int64_t>{1, 1, 1});
  if (sides.size() != 3 || sides[0] != 1)
    json.fail("patch_size must be one number, or three of which the first, of frames, is 1");
  return {sides[0], sides[1], sides[2]};
}

void refuse_unsupported(const ConfigReader& json) {
  const std::string type = json.text("_class_name", "");
  if (!type.empty() && type != kImageClass && type != kVideoClass)
    json.fail("_class_name is \"" + type + "\": supported are " + std::string(kImageClass) + " and " +
              std::string(kVideoClass) +
              "; causal (LongSANA), ControlNet and world models (SANA-WM) have other blocks");
  json.expect("attention_bias", false);
  json.expect("norm_elementwise_affine", false);
  json.expect("dropout", 0.0);
}

void check_sizes(const ConfigReader& json, const Config& c, bool of_recipe) {
  const auto number = [](int64_t n) { return std::to_string(n); };
  const auto dim = static_cast<double>(c.dim());
  json.expect_narrow("num_attention_heads times attention_head_dim", dim);
  json.expect_narrow("mlp_ratio times the width", c.mlp_ratio * dim);
  json.expect_narrow(
      "in_channels times the places of a patch",
      static_cast<double>(c.in_channels) * static_cast<double>(c.patch[1]) * static_cast<double>(c.patch[2]));
  if (c.dim() % c.cross_heads != 0)
    json.fail("the width " + number(c.dim()) + " is not a multiple of num_cross_attention_heads " +
              number(c.cross_heads));
  const bool given = json.has("cross_attention_head_dim") && !of_recipe;
  if (given && json.size("cross_attention_head_dim") * c.cross_heads != c.dim())
    json.fail("num_cross_attention_heads times cross_attention_head_dim is not the width " + number(c.dim()));
  if (c.is_video() && (c.head_dim % 2 != 0 || c.head_dim < 6))
    json.fail("a head of " + number(c.head_dim) +
              " channels cannot be rotated by 3 axes: it must be even and at least 6");
  if (c.interpolation_scale && c.dim() % 4 != 0)
    json.fail("the width " + number(c.dim()) +
              " is not a multiple of 4: a table of positions has a sine and a cosine " + "of each of two axes");
  if (c.in_channels != c.out_channels)
    json.fail("in_channels " + number(c.in_channels) + " and out_channels " + number(c.out_channels) +
              " differ: ControlNets are not supported");
  if (c.hidden() < 1) json.fail("mlp_ratio makes a feed-forward without a channel");
  if (c.is_video() && c.in_channels > kWanChannels)
    json.fail("SANA-Video with " + number(c.in_channels) +
              " latent channels (720p) is not supported: its autoencoders, "
              "DC-AE-V and LTX-2, are not; the 480p model has " +
              number(kWanChannels));
}

Type parse_type(const ConfigReader& json) {
  if (is_video(json)) return Type::video;
  const bool guidance = json.text("model_type", "") == "sprint" || json.flag("guidance_embeds", false);
  return guidance ? Type::sprint : Type::image;
}

}  // namespace

std::string_view name(Type type) { return kTypes[static_cast<size_t>(type)]; }
std::string_view class_name(Type type) { return type == Type::video ? kVideoClass : kImageClass; }

Config parse_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  refuse_unsupported(json);
  Config c;
  c.type = parse_type(json);
  const bool video = c.is_video();
  c.num_heads = json.size("num_attention_heads", video ? 20 : 70);  // the defaults of diffusers' classes
  c.head_dim = json.size("attention_head_dim", video ? 112 : 32);
  c.cross_heads = json.size("num_cross_attention_heads", 20);
  c.num_layers = json.size("num_layers", 20);
  c.in_channels = json.size("in_channels", video ? 16 : 32);
  const bool of_recipe = file == kRecipeConfig;  // its fields replace some of a preset's, from which these follow
  c.out_channels = of_recipe ? c.in_channels : json.size("out_channels", c.in_channels);
  c.caption_dim = json.size("caption_channels", c.caption_dim);
  c.caption_len = json.size("caption_length", c.caption_len);
  c.mlp_ratio = json.real("mlp_ratio", c.mlp_ratio);
  c.patch = parse_patch(json, video);
  c.sample_size = json.size("sample_size", video ? 30 : 32);
  if (json.has("interpolation_scale") && !video) c.interpolation_scale = json.real("interpolation_scale", 1);
  if (json.has("qk_norm")) json.expect("qk_norm", "rms_norm_across_heads");
  if (!of_recipe) json.expect("cross_attention_dim", c.dim());
  if (video) json.expect("guidance_embeds", false);
  json.without_effect({"rope_max_seq_len"});  // of a table that is made as long as a video is
  c.qk_norm = json.has("qk_norm") || (video && !json.is_null("qk_norm"));
  c.norm_eps = json.real("norm_eps", c.norm_eps);
  c.attention_eps = json.real("linear_attention_eps", c.attention_eps);
  c.cross_norm_eps = json.real("cross_attention_norm_eps", c.cross_norm_eps);
  c.timestep_scale = json.real("timestep_scale", c.timestep_scale);
  c.guidance_scale = json.real("guidance_embeds_scale", c.guidance_scale);
  c.logvar = json.flag("logvar", false);
  check_sizes(json, c, of_recipe);
  return c;
}

std::string to_json(const Config& c) {
  const Config usual;
  Json json = {{"_class_name", class_name(c.type)},
               {"attention_bias", false},
               {"attention_head_dim", c.head_dim},
               {"caption_channels", c.caption_dim},
               {"cross_attention_dim", c.dim()},
               {"cross_attention_head_dim", c.dim() / c.cross_heads},
               {"dropout", 0.0},
               {"guidance_embeds", c.has_guidance()},
               {"guidance_embeds_scale", c.guidance_scale},
               {"in_channels", c.in_channels},
               {"interpolation_scale", c.interpolation_scale ? Json(*c.interpolation_scale) : Json()},
               {"mlp_ratio", c.mlp_ratio},
               {"norm_elementwise_affine", false},
               {"norm_eps", c.norm_eps},
               {"num_attention_heads", c.num_heads},
               {"num_cross_attention_heads", c.cross_heads},
               {"num_layers", c.num_layers},
               {"out_channels", c.out_channels},
               {"qk_norm", c.qk_norm ? Json("rms_norm_across_heads") : Json()},
               {"sample_size", c.sample_size}};
  if (c.is_video()) {
    json["patch_size"] = c.patch;
    json["rope_max_seq_len"] = 1024;
  } else {
    json["patch_size"] = c.patch[1];
    json["timestep_scale"] = c.timestep_scale;
  }
  // not fields of the classes
  if (c.caption_len != usual.caption_len) json["caption_length"] = c.caption_len;
  if (c.attention_eps != usual.attention_eps) json["linear_attention_eps"] = c.attention_eps;
  if (c.logvar) json["logvar"] = true;
  if (c.cross_norm_eps != usual.cross_norm_eps) json["cross_attention_norm_eps"] = c.cross_norm_eps;
  return json.dump(2) + "\n";
}

const std::vector<std::pair<std::string, Config>>& presets() {
  static const Config k600m = {};
  static const Config k1600m = {.num_heads = 70, .cross_heads = 20, .num_layers = 20};
  const auto with_norms = [](Config c, int64_t layers) {
    c.qk_norm = true, c.num_layers = layers;
    return c;
  };
  const auto sprint = [&](Config c) {
    c = with_norms(c, c.num_layers);
    c.type = Type::sprint;
    return c;
  };
  const auto large = [](Config c, int64_t side, std::optional<double> scale) {
    c.sample_size = side, c.interpolation_scale = scale;
    return c;
  };
  static const Config tiny = {.num_heads = 4,
                              .head_dim = 8,
                              .cross_heads = 2,
                              .num_layers = 2,
                              .in_channels = 4,
                              .out_channels = 4,
                              .caption_dim = 20,
                              .caption_len = 6,
                              .sample_size = 8};
  const auto tiny_video = [] {
    Config c = tiny;
    c.type = Type::video;
    c.qk_norm = true, c.mlp_ratio = 3, c.patch = {1, 2, 2};
    return c;
  };
  static const std::vector<std::pair<std::string, Config>> table = {
      {"sana-0.6b", k600m},
      {"sana-1.6b", k1600m},
      {"sana-1.6b-2k", large(k1600m, 64, 1.0)},
      {"sana-1.6b-4k", large(k1600m, 128, 2.0)},
      {"sana1.5-1.6b", with_norms(k1600m, 20)},
      {"sana1.5-4.8b", with_norms(k1600m, 60)},
      {"sana-sprint-0.6b", sprint(k600m)},
      {"sana-sprint-1.6b", sprint(k1600m)},
      {"sana-video-2b-480p",
       {.type = Type::video,
        .num_heads = 20,
        .head_dim = 112,
        .cross_heads = 20,
        .num_layers = 20,
        .in_channels = 16,
        .out_channels = 16,
        .mlp_ratio = 3,
        .patch = {1, 2, 2},
        .qk_norm = true,
        .sample_size = 30}},
      // 7M parameters, for runs of some minutes: latents of the built-in wavelet, text of umt5-demo
      {"sana-demo",
       {.num_heads = 8,
        .head_dim = 32,
        .cross_heads = 4,
        .num_layers = 6,
        .in_channels = 48,
        .out_channels = 48,
        .caption_dim = 64,
        .caption_len = 32,
        .qk_norm = true,
        .sample_size = 8}},
      // small enough for a unit test
      {"sana-tiny", tiny},
      {"sana-tiny-norms", with_norms(tiny, 2)},
      {"sana-tiny-sprint", sprint(tiny)},
      {"sana-tiny-video", tiny_video()},
  };
  return table;
}

}  // namespace tessera::models::sana
