#include "tessera/models/sana/files.h"

#include <algorithm>

#include "tessera/base/check.h"
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
  c.norm_eps = json.above_zero("norm_eps", c.norm_eps);
  c.attention_eps = json.above_zero("linear_attention_eps", c.attention_eps);
  c.cross_norm_eps = json.above_zero("cross_attention_norm_eps", c.cross_norm_eps);
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

namespace {

std::vector<NamePattern> together(std::initializer_list<std::span<const NamePattern>> tables) {
  std::vector<NamePattern> all;
  for (const auto& table : tables) all.insert(all.end(), table.begin(), table.end());
  return all;
}

constexpr NamePattern kOfEveryType[] = {
    {"t_block.1.*", "time_embed.linear.*"},
    {"y_embedder.y_proj.fc1.*", "caption_projection.linear_1.*"},
    {"y_embedder.y_proj.fc2.*", "caption_projection.linear_2.*"},
    {"attention_y_norm.*", "caption_norm.*"},
    {"final_layer.linear.*", "proj_out.*"},
    {"final_layer.scale_shift_table", "scale_shift_table"},
    {"blocks.#.scale_shift_table", "transformer_blocks.#.scale_shift_table"},
    {"blocks.#.attn.q.*", "transformer_blocks.#.attn1.to_q.*"},
    {"blocks.#.attn.k.*", "transformer_blocks.#.attn1.to_k.*"},
    {"blocks.#.attn.v.*", "transformer_blocks.#.attn1.to_v.*"},
    {"blocks.#.attn.q_norm.*", "transformer_blocks.#.attn1.norm_q.*"},
    {"blocks.#.attn.k_norm.*", "transformer_blocks.#.attn1.norm_k.*"},
    {"blocks.#.attn.proj.*", "transformer_blocks.#.attn1.to_out.0.*"},
    {"blocks.#.cross_attn.q_linear.*", "transformer_blocks.#.attn2.to_q.*"},
    {"blocks.#.cross_attn.k_linear.*", "transformer_blocks.#.attn2.to_k.*"},
    {"blocks.#.cross_attn.v_linear.*", "transformer_blocks.#.attn2.to_v.*"},
    {"blocks.#.cross_attn.q_norm.*", "transformer_blocks.#.attn2.norm_q.*"},
    {"blocks.#.cross_attn.k_norm.*", "transformer_blocks.#.attn2.norm_k.*"},
    {"blocks.#.cross_attn.proj.*", "transformer_blocks.#.attn2.to_out.0.*"},
    {"blocks.#.mlp.inverted_conv.value.*", "transformer_blocks.#.ff.conv_inverted.0of2.*"},
    {"blocks.#.mlp.inverted_conv.gate.*", "transformer_blocks.#.ff.conv_inverted.1of2.*"},
    {"blocks.#.mlp.depth_conv.value.*", "transformer_blocks.#.ff.conv_depth.0of2.*"},
    {"blocks.#.mlp.depth_conv.gate.*", "transformer_blocks.#.ff.conv_depth.1of2.*"},
    {"blocks.#.mlp.point_conv.conv.*", "transformer_blocks.#.ff.conv_point.*"},
    {"blocks.#.mlp.t_conv.*", "transformer_blocks.#.ff.conv_temp.*"},
};
constexpr NamePattern kPatches2d[] = {{"x_embedder.proj.*", "patch_embed.proj.*"}};
constexpr NamePattern kPatches3d[] = {{"x_embedder.proj.*", "patch_embedding.*"}};
constexpr NamePattern kTimeNames[] = {
    {"t_embedder.mlp.0.*", "time_embed.emb.timestep_embedder.linear_1.*"},
    {"t_embedder.mlp.2.*", "time_embed.emb.timestep_embedder.linear_2.*"},
};
constexpr NamePattern kGuidedTimeNames[] = {
    {"t_embedder.mlp.0.*", "time_embed.timestep_embedder.linear_1.*"},
    {"t_embedder.mlp.2.*", "time_embed.timestep_embedder.linear_2.*"},
    {"cfg_embedder.mlp.0.*", "time_embed.guidance_embedder.linear_1.*"},
    {"cfg_embedder.mlp.2.*", "time_embed.guidance_embedder.linear_2.*"},
};

/// Heads of the released models, by width.
struct Heads {
  int64_t dim, self, cross;
};
constexpr Heads kImageHeads[] = {{1152, 36, 16}, {2240, 70, 20}};
constexpr Heads kVideoHeads[] = {{2240, 20, 20}};

Heads usual_heads(Type type, int64_t dim) {
  for (const Heads& heads : kImageHeads)
    if (type != Type::video && heads.dim == dim) return heads;
  for (const Heads& heads : kVideoHeads)
    if (type == Type::video && heads.dim == dim) return heads;
  return {dim, 0, 0};
}

/// The sizes that tensors tell.
Config sizes_of(Type type, const Shapes& ours) {
  Config c;
  c.type = type;
  const int64_t dim = size_of(ours, "x_embedder.proj.weight", 0);
  c.num_layers = count_blocks(ours);
  c.in_channels = size_of(ours, "x_embedder.proj.weight", 1);
  c.caption_dim = size_of(ours, "y_embedder.y_proj.fc1.weight", 1);
  c.qk_norm = ours.count("blocks.0.attn.q_norm.weight") > 0;
  const size_t first = type == Type::video ? 3 : 2;
  c.patch = {1, size_of(ours, "x_embedder.proj.weight", first), size_of(ours, "x_embedder.proj.weight", first + 1)};
  c.out_channels = size_of(ours, "final_layer.linear.weight", 0) / std::max<int64_t>(c.patch_size(), 1);
  const auto hidden = static_cast<double>(size_of(ours, "blocks.0.mlp.inverted_conv.value.weight", 0));
  c.mlp_ratio = hidden / static_cast<double>(std::max<int64_t>(dim, 1));
  const Heads heads = usual_heads(type, dim);
  if (heads.self > 0) c.num_heads = heads.self, c.head_dim = dim / heads.self, c.cross_heads = heads.cross;
  return c;
}

/// The preset of these sizes, or nothing. Those of larger pictures have the same tensors.
std::string preset_of(Type type, const Shapes& ours) {
  const Config c = sizes_of(type, ours);
  for (const auto& [preset, known] : presets())
    if (known.type == type && known.dim() == size_of(ours, "x_embedder.proj.weight", 0) &&
        known.num_layers == c.num_layers && known.qk_norm == c.qk_norm && known.in_channels == c.in_channels &&
        known.caption_dim == c.caption_dim && known.patch == c.patch && known.hidden() == c.hidden())
      return preset;
  return {};
}

/// diffusers' form, of either naming: NVlabs' files come without one.
Json config_json(Type type, const ConfigSource& source) {
  const Sizes& size = source.size;
  const int64_t dim = size("x_embedder.proj.weight", 0);
  size("final_layer.linear.weight", 0), size("blocks.0.mlp.inverted_conv.value.weight", 0);
  Config c = sizes_of(type, size.shapes);
  const auto given = [&](const char* key, auto absent) { return source.given.get(key, key, absent); };
  c.num_heads = given("num_attention_heads", c.num_heads);
  c.cross_heads = given("num_cross_attention_heads", c.cross_heads);
  if (c.num_heads <= 0 || c.cross_heads <= 0 || dim % c.num_heads != 0 || dim % c.cross_heads != 0 ||
      (usual_heads(type, dim).self == 0 && source.given.json.empty()))
    throw UserError(Exit::input, "models.config",
                    "how many heads " + std::to_string(dim) + " channels have does not follow from the weights",
                    "put the model's config.json beside them");
  c.head_dim = dim / c.num_heads;
  c.mlp_ratio = given("mlp_ratio", c.mlp_ratio);
  c.sample_size = given("sample_size", type == Type::video ? int64_t{30} : c.sample_size);
  if (const double scale = given("interpolation_scale", 0.0); scale > 0) c.interpolation_scale = scale;
  c.caption_len = given("caption_length", c.caption_len);
  c.attention_eps = given("linear_attention_eps", source.identity.naming == "official" ? 1e-8 : c.attention_eps);
  c.cross_norm_eps = given("cross_attention_norm_eps", source.identity.naming == "official" ? 1e-6 : c.cross_norm_eps);
  Json out = source.given.base("num_attention_heads");
  out.update(Json::parse(to_json(c)));
  return out;
}

/// Heads of another width than the released ones, and for which latents the table of positions was made.
template <Type type>
std::vector<std::string> untold(const Shapes& ours, const Identity&) {
  std::vector<std::string> fields;
  if (usual_heads(type, size_of(ours, "x_embedder.proj.weight", 0)).self == 0)
    fields = {"num_attention_heads", "num_cross_attention_heads", "caption_length"};
  if (type == Type::image) fields.emplace_back("sample_size");
  return fields;
}

WeightForm form_of(Type type) {
  std::vector<std::string> marks = {"x_embedder.proj.weight", "y_embedder.y_proj.fc1.weight", "blocks.0.attn.q.weight",
                                    "blocks.0.mlp.point_conv.conv.weight"};
  if (type == Type::sprint) marks.push_back("cfg_embedder.mlp.0.weight");
  if (type == Type::video) marks.push_back("blocks.0.mlp.t_conv.weight");
  return {.kind = ModelKind::denoiser,
          .title = "Sana",
          .model = "sana",
          .variant = std::string(name(type)),
          .marks = marks,
          .names = {.diffusers = {diffusers_names(type)}, .official = {official_names()}},
          // the caption of no words, and what older files and runs with learned loss weights have
          .official_only = {"y_embedder.y_embedding", "pos_embed", "logvar_linear.*"},
          .null_caption = "y_embedder.y_embedding",
          .refine =
              [type](const Shapes& ours, Identity& identity) {
                const std::string preset = preset_of(type, ours);
                identity.model = preset.empty() ? "sana-" + std::string(name(type)) : preset;
              },
          .config = [type](const ConfigSource& source) { return config_json(type, source); },
          .untold = type == Type::video    ? untold<Type::video>
                    : type == Type::sprint ? untold<Type::sprint>
                                           : untold<Type::image>,
          .config_marks = {"num_cross_attention_heads"}};
}

}  // namespace

const std::vector<NamePattern>& official_names() {
  static const std::vector<NamePattern> table = {
      {"blocks.#.attn.q.*", "blocks.#.attn.qkv.0of3.*"},
      {"blocks.#.attn.k.*", "blocks.#.attn.qkv.1of3.*"},
      {"blocks.#.attn.v.*", "blocks.#.attn.qkv.2of3.*"},
      {"blocks.#.cross_attn.k_linear.*", "blocks.#.cross_attn.kv_linear.0of2.*"},
      {"blocks.#.cross_attn.v_linear.*", "blocks.#.cross_attn.kv_linear.1of2.*"},
      {"blocks.#.mlp.inverted_conv.value.*", "blocks.#.mlp.inverted_conv.conv.0of2.*"},
      {"blocks.#.mlp.inverted_conv.gate.*", "blocks.#.mlp.inverted_conv.conv.1of2.*"},
      {"blocks.#.mlp.depth_conv.value.*", "blocks.#.mlp.depth_conv.conv.0of2.*"},
      {"blocks.#.mlp.depth_conv.gate.*", "blocks.#.mlp.depth_conv.conv.1of2.*"},
  };
  return table;
}

const std::vector<NamePattern>& diffusers_names(Type type) {
  static const std::vector<NamePattern> image = together({kPatches2d, kTimeNames, kOfEveryType}),
                                        sprint = together({kPatches2d, kGuidedTimeNames, kOfEveryType}),
                                        video = together({kPatches3d, kTimeNames, kOfEveryType});
  return type == Type::image ? image : type == Type::sprint ? sprint : video;
}

std::vector<WeightForm> weight_forms() { return {form_of(Type::video), form_of(Type::sprint), form_of(Type::image)}; }

std::map<std::string, std::string> pipeline_files(const PipelineParts& parts) {
  const bool sprint = parts.variant == "sprint", video = parts.variant == "video";
  const std::string solver = sprint ? "SCMScheduler" : "DPMSolverMultistepScheduler";
  Json index = {{"_class_name", sprint  ? "SanaSprintPipeline"
                                : video ? "SanaVideoPipeline"
                                        : "SanaPipeline"},
                {"_diffusers_version", "0.35.2"},
                {"scheduler", {"diffusers", solver}}};
  if (parts.has("text_encoder")) index["text_encoder"] = {"transformers", "Gemma2Model"};
  if (parts.has("transformer"))
    index["transformer"] = {"diffusers", std::string(class_name(video ? Type::video : Type::image))};
  if (parts.has("vae")) index["vae"] = {"diffusers", video ? "AutoencoderKLWan" : "AutoencoderDC"};
  if (parts.tokenizer) index["tokenizer"] = {"transformers", "GemmaTokenizerFast"};
  Json scheduler = {{"_class_name", solver}, {"_diffusers_version", "0.35.2"}, {"num_train_timesteps", 1000}};
  if (sprint)
    scheduler.update(Json{{"prediction_type", "trigflow"}, {"sigma_data", 0.5}});
  else
    scheduler.update(
        Json{{"flow_shift", video ? 8.0 : 3.0}, {"prediction_type", "flow_prediction"}, {"use_flow_sigmas", true}});
  return {{"model_index.json", index.dump(2) + "\n"}, {"scheduler/scheduler_config.json", scheduler.dump(2) + "\n"}};
}

}  // namespace tessera::models::sana
