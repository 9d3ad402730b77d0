#include "tessera/models/stdit/weight_form.h"

#include "tessera/base/check.h"
#include "tessera/models/stdit/config.h"

namespace tessera::models::stdit {

namespace {

using Json = nlohmann::ordered_json;

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
