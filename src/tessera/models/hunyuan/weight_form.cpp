#include "tessera/models/hunyuan/weight_form.h"

#include "tessera/base/check.h"
#include "tessera/models/hunyuan/config.h"

namespace tessera::models::hunyuan {

namespace {

using Json = nlohmann::ordered_json;

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
  if (c.num_heads < 1 || c.mlp_ratio < 1)
    throw UserError(Exit::input, "models.config",
                    "heads of " + std::to_string(source.size(kHeadNorm, 0)) + " channels and feed-forwards of " +
                        std::to_string(source.size(kUpWeight, 0)) + " do not belong to a model of " +
                        std::to_string(c.hidden_size),
                    "the file is not whole: fetch it again");
  if (!source.given.json.empty()) {
    const Json& said = source.given.json;
    Json whole = said;
    if (!said.contains("mm_double_blocks_depth") && !said.contains("num_layers")) {  // some fields, of a recipe
      whole = Json::parse(to_json(c));
      whole.merge_patch(said);
    }
    const Config given = parse_config(whole.dump(), source.file, source.size.shapes);
    c.axes = given.axes, c.theta = given.theta;
    c.text_len = given.text_len, c.glyph_len = given.glyph_len, c.image_len = given.image_len;
  }
  if (c.axes[0] == 0)
    throw UserError(Exit::input, "models.config",
                    "how heads of " + std::to_string(c.head_dim()) +
                        " channels are rotated by frames, rows and columns does not follow from the weights",
                    "put the model's config.json beside them");
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
