#include "tessera/models/sana/weight_form.h"

#include "tessera/base/check.h"
#include "tessera/models/sana/config.h"

namespace tessera::models::sana {

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

using Json = nlohmann::ordered_json;

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
