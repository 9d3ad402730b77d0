#include "tessera/models/wan/weight_form.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "tessera/base/check.h"
#include "tessera/models/wan/config.h"

namespace tessera::models::wan {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kHeadDim = 128;  // of every released Wan denoiser
constexpr const char* kOfficialVersion = "0.30.0";

bool has_vace(const Shapes& official) { return official.count("vace_patch_embedding.weight") > 0; }
/// How many blocks begin like this.
int64_t blocks_of(const Shapes& official, const std::string& list) {
  Shapes own;
  for (auto tensor = official.lower_bound(list); tensor != official.end() && tensor->first.starts_with(list); ++tensor)
    own.insert(*tensor);
  return count_blocks(own);
}
/// Of the transformer, without those beside it.
int64_t main_blocks(const Shapes& official) { return blocks_of(official, "blocks."); }
/// Blocks that are followed by a block of the second stream, where these are as far from each other as can be; else none.
std::vector<int64_t> even_vace_layers(const Shapes& official) {
  const int64_t blocks = main_blocks(official), added = blocks_of(official, "vace_blocks.");
  std::vector<int64_t> layers;
  if (added == 0 || blocks % added != 0) return layers;
  for (int64_t j = 0; j < added; ++j) layers.push_back(j * (blocks / added));
  return layers;
}

/// The preset of this type and these sizes, or nothing.
std::string preset_of(std::string_view variant, const Shapes& official) {
  for (const auto& [preset, config] : presets())
    if (name(config.type) == variant && config.dim == size_of(official, "patch_embedding.weight", 0) &&
        config.num_layers == main_blocks(official) && config.ffn_dim == size_of(official, "blocks.0.ffn.0.weight", 0) &&
        config.in_dim == size_of(official, "patch_embedding.weight", 1) &&
        config.text_dim == size_of(official, "text_embedding.0.weight", 1) &&
        config.ref_dim == std::max<int64_t>(size_of(official, "ref_conv.weight", 1), 0) &&
        (config.camera_dim > 0) == (official.count("control_adapter.conv.weight") > 0) &&
        config.has_image_branch() == (official.count("img_emb.proj.1.weight") > 0))
      return preset;
  return {};
}

/// Of the latents that it predicts.
int64_t channels_out(const Shapes& official) {
  int64_t patch = 1;
  for (size_t axis = 2; axis < 5; ++axis) patch *= size_of(official, "patch_embedding.weight", axis);
  return patch > 0 ? size_of(official, "head.head.weight", 0) / patch : 0;
}

/// Whether it is one of VideoX-Fun's, with further inputs or more channels of conditions than Wan's.
bool is_fun(const std::string& variant, const Shapes& official) {
  if (official.count("ref_conv.weight") || official.count("control_adapter.conv.weight")) return true;
  const int64_t out = channels_out(official), more = size_of(official, "patch_embedding.weight", 1) - out;
  return variant != "s2v" && more > 0 && (more != kMaskChannels + out || variant == "ti2v");
}

std::string variant_of(const Shapes& official) {
  const auto has = [&](const char* name) { return official.count(name) > 0; };
  if (has("casual_audio_encoder.weights")) return "s2v";
  if (has_vace(official)) return "vace";
  if (has("motion_encoder.dec.direction.weight")) return "animate";
  if (has("img_emb.emb_pos")) return "flf2v";
  if (has("blocks.0.cross_attn.k_img.weight")) return "i2v";
  const int64_t in = size_of(official, "patch_embedding.weight", 1), out = channels_out(official);
  if (in > out && out > 0)
    return out == 48 ? "ti2v" : "i2v";  // the 2.2 models have no image branch, only more channels
  switch (in) {
    case 48:  // Wan 2.2's autoencoder, or a wavelet as wide
      return preset_of("t2v", official).empty() ? "ti2v" : "t2v";
    default:
      return "t2v";
  }
}

/// The released sizes that are no preset of ours.
struct Release {
  std::string_view variant;
  int64_t dim, layers;
  bool image_branch;
  const char* model;
};
constexpr Release kReleases[] = {
    {"i2v", 5120, 40, true, "wan2.1-i2v-14b"},    {"flf2v", 5120, 40, true, "wan2.1-flf2v-14b"},
    {"i2v", 5120, 40, false, "wan2.2-i2v-a14b"},  {"ti2v", 3072, 30, false, "wan2.2-ti2v-5b"},
    {"s2v", 5120, 40, false, "wan2.2-s2v-14b"},   {"vace", 1536, 30, false, "wan2.1-vace-1.3b"},
    {"vace", 5120, 40, false, "wan2.1-vace-14b"}, {"animate", 5120, 40, true, "wan2.2-animate-14b"}};

std::string model_of(const std::string& variant, const Shapes& official) {
  const int64_t dim = size_of(official, "patch_embedding.weight", 0), layers = main_blocks(official);
  const bool image_branch = official.count("img_emb.proj.1.weight") > 0;
  if (!is_fun(variant, official))
    for (const Release& r : kReleases)
      if (r.variant == variant && r.dim == dim && r.layers == layers && r.image_branch == image_branch) return r.model;
  if (const std::string preset = preset_of(variant, official); !preset.empty()) return preset;
  return "wan-" + variant;
}

/// Of a variant in diffusers.
std::string class_of(const std::string& variant) {
  return variant == "vace"      ? "WanVACETransformer3DModel"
         : variant == "animate" ? "WanAnimateTransformer3DModel"
                                : "WanTransformer3DModel";
}

int64_t faces_at_once(const GivenConfig& given) {
  return given.get<int64_t>("motion_encoder_batch_size", "motion_encoder_batch_size", kFacesAtOnce);
}

/// What the tensors say of an Animate model's own networks, which both forms write alike.
void add_animate(const Sizes& size, Json& out) {
  int64_t convolutions = 1;
  const auto at = [](int64_t i, const char* end) {
    return "motion_encoder.enc.net_app.convs." + std::to_string(i) + end;
  };
  while (size.has(at(convolutions, ".conv1.0.weight"))) ++convolutions;
  Json channels = Json::object();
  int64_t side = 4;
  for (int64_t i = convolutions; i-- > 0; side *= 2)
    channels[std::to_string(side)] = i == 0 ? size(at(0, ".0.weight"), 0) : size(at(i, ".conv2.1.weight"), 0);
  const int64_t hidden = size("face_encoder.out_proj.weight", 1);
  out.update(
      Json{{"motion_encoder_dim", size("motion_encoder.dec.direction.weight", 0)},
           {"motion_dim", size("motion_encoder.dec.direction.weight", 1)},
           {"motion_style_dim", size("motion_encoder.enc.fc.0.weight", 0)},
           {"motion_encoder_size", side / 2},
           {"motion_encoder_channel_sizes", channels},
           {"face_encoder_hidden_dim", hidden},
           {"face_encoder_num_heads", size("face_encoder.conv1_local.conv.weight", 0) / std::max<int64_t>(hidden, 1)}});
}

Json config_json(const ConfigSource& source) {
  const auto& [diffusers, identity, size, given, file] = source;
  Json out;
  const int64_t dim = size("patch_embedding.weight", 0);
  const int64_t heads = given.get<int64_t>("num_heads", "num_attention_heads", dim / kHeadDim);
  if (heads <= 0 || dim % heads != 0)
    throw UserError(Exit::input, "models.config",
                    std::to_string(dim) + " channels do not divide into " + std::to_string(heads) + " heads",
                    "put the model's config.json beside the weights");
  const std::vector<int64_t> patch = {size("patch_embedding.weight", 2), size("patch_embedding.weight", 3),
                                      size("patch_embedding.weight", 4)};
  const int64_t text_dim = size("text_embedding.0.weight", 1), layers = main_blocks(size.shapes);
  const int64_t out_dim = size("head.head.weight", 0) / (patch[0] * patch[1] * patch[2]);
  const int64_t text_len = given.get<int64_t>("text_len", "text_len", 512);
  const double eps = given.get<double>("eps", "eps", 1e-6);
  const bool image = size.has("img_emb.proj.1.weight");
  const int64_t image_len =
      size.has("img_emb.emb_pos") ? size("img_emb.emb_pos", 1) / 2 : given.get<int64_t>("image_len", "image_len", 257);
  const bool vace = has_vace(size.shapes);
  const auto vace_layers = [&] {
    std::vector<int64_t> layers = given.get("vace_layers", "vace_layers", even_vace_layers(size.shapes));
    if (static_cast<int64_t>(layers.size()) != blocks_of(size.shapes, "vace_blocks."))
      throw UserError(Exit::input, "models.config", "the tensors do not tell which blocks vace_layers names",
                      "put the model's config.json beside the weights");
    return layers;
  };
  const bool reference = size.has("ref_conv.weight"), camera = size.has("control_adapter.conv.weight");
  if (diffusers) {
    if (reference || camera)
      throw UserError(Exit::input, "models.config",
                      std::string("diffusers has no class for Wan with ") +
                          (reference ? "a reference's convolution" : "an adapter of cameras"),
                      "keep the official names");
    if (identity.variant == "s2v")
      throw UserError(Exit::input, "models.config", "diffusers has no class for Wan's speech-to-video model",
                      "keep the official names");
    out = given.base("num_attention_heads");
    out.update(Json{{"_class_name", class_of(identity.variant)},
                    {"added_kv_proj_dim", image ? Json(dim) : Json()},
                    {"attention_head_dim", dim / heads},
                    {"cross_attn_norm", true},
                    {"eps", eps},
                    {"ffn_dim", size("blocks.0.ffn.0.weight", 0)},
                    {"freq_dim", size("time_embedding.0.weight", 1)},
                    {"image_dim", image ? Json(size("img_emb.proj.1.weight", 1)) : Json()},
                    {"in_channels", size("patch_embedding.weight", 1)},
                    {"num_attention_heads", heads},
                    {"num_layers", layers},
                    {"out_channels", out_dim},
                    {"patch_size", patch},
                    {"pos_embed_seq_len", size.has("img_emb.emb_pos") ? Json(size("img_emb.emb_pos", 1)) : Json()},
                    {"qk_norm", "rms_norm_across_heads"},
                    {"rope_max_seq_len", 1024},
                    {"text_dim", text_dim}});
    if (vace)
      out.update(Json{{"vace_in_channels", size("vace_patch_embedding.weight", 1)}, {"vace_layers", vace_layers()}});
    if (identity.variant == "animate") {
      out.update(Json{{"inject_face_latents_blocks", kBlocksAnAdapter},
                      {"latent_channels", out_dim},
                      {"motion_encoder_batch_size", faces_at_once(given)}});
      add_animate(size, out);
    }
    // not fields of the class; the conversion back needs them
    if (text_len != 512) out["text_len"] = text_len;
    if (image && image_len != 257) out["image_len"] = image_len;
    if (const auto type = given.get<std::string>("model_type", "model_type", identity.variant);
        type != identity.variant || (type == "t2v" && size("patch_embedding.weight", 1) == 48))
      out["model_type"] = type;
    return out;
  }
  out = given.base("num_heads");
  out.update(Json{{"_class_name", vace ? "VaceWanModel" : "WanModel"},
                  {"_diffusers_version", kOfficialVersion},
                  {"dim", dim},
                  {"eps", eps},
                  {"ffn_dim", size("blocks.0.ffn.0.weight", 0)},
                  {"freq_dim", size("time_embedding.0.weight", 1)},
                  {"in_dim", size("patch_embedding.weight", 1)},
                  {"model_type", given.get<std::string>("model_type", "model_type", identity.variant)},
                  {"num_heads", heads},
                  {"num_layers", layers},
                  {"out_dim", out_dim},
                  {"text_len", text_len}});
  if (identity.variant == "animate") {
    out.update(Json{{"_class_name", "WanAnimateModel"}, {"use_img_emb", true}});
    if (!given.json.contains("model_type")) out.erase("model_type");  // which its files do not have
    if (faces_at_once(given) != kFacesAtOnce) out["motion_encoder_batch_size"] = faces_at_once(given);
    add_animate(size, out);
  }
  if (vace) out.update(Json{{"vace_in_dim", size("vace_patch_embedding.weight", 1)}, {"vace_layers", vace_layers()}});
  // the official file leaves these to defaults
  if (text_dim != 4096) out["text_dim"] = text_dim;
  if (image && size("img_emb.proj.1.weight", 1) != 1280) out["image_dim"] = size("img_emb.proj.1.weight", 1);
  if (image && image_len != 257) out["image_len"] = image_len;
  if (is_fun(identity.variant, size.shapes)) {  // the names of VideoX-Fun's classes, which say whether it sees pictures
    out["_class_name"] = image ? "WanTransformer3DModel" : "Wan2_2Transformer3DModel";
    if (reference) out["add_ref_conv"] = true, out["in_dim_ref_conv"] = size("ref_conv.weight", 1);
    if (camera) {
      const auto rays = given.get<int64_t>("in_dim_control_adapter", "in_dim_control_adapter", kCameraChannels);
      const int64_t channels = size("control_adapter.conv.weight", 1);
      out["add_control_adapter"] = true;
      out["in_dim_control_adapter"] = rays;
      out["downscale_factor_control_adapter"] =
          std::lround(std::sqrt(static_cast<double>(channels) / static_cast<double>(std::max<int64_t>(rays, 1))));
    }
  }
  return out;
}

/// All heads of the released widths have 128 channels and read 512 rows of UMT5-XXL; of other models no tensor tells.
std::vector<std::string> untold(const Shapes& official, const Identity& identity) {
  const auto has = [&](const char* name) { return official.count(name) > 0; };
  const int64_t dim = size_of(official, "patch_embedding.weight", 0);
  const bool released = std::ranges::any_of(presets(), [&](const auto& preset) {
    const Config& known = preset.second;
    return known.dim == dim && known.text_dim == Config().text_dim && known.head_dim() == kHeadDim;
  });
  if (released && size_of(official, "text_embedding.0.weight", 1) == Config().text_dim) return {};
  std::vector<std::string> fields = {"num_heads", "text_len"};
  const bool wide =
      identity.variant == "ti2v" || (identity.variant == "t2v" && size_of(official, "patch_embedding.weight", 1) == 48);
  if (wide) fields.emplace_back("model_type");  // the same tensors, with or without a clean first frame
  if (has("img_emb.proj.1.weight") && !has("img_emb.emb_pos")) fields.emplace_back("image_len");
  if (identity.variant == "s2v") fields.emplace_back("audio_inject_layers");
  if (identity.variant == "vace") fields.emplace_back("vace_layers");
  return fields;
}

/// Further rows for the second stream, whose blocks have the names of the others and two linears more.
std::vector<NamePattern> with_vace(std::vector<NamePattern> table) {
  static std::deque<std::string> texts;  // deques move no text that is there
  for (size_t row = 0, count = table.size(); row < count; ++row) {
    if (!table[row].ours.starts_with("blocks.")) continue;
    const std::string &ours = texts.emplace_back("vace_" + std::string(table[row].ours)),
                      &theirs = texts.emplace_back("vace_" + std::string(table[row].theirs));
    table.push_back({ours, theirs});
  }
  table.push_back({"vace_blocks.#.before_proj.*", "vace_blocks.#.proj_in.*"});
  table.push_back({"vace_blocks.#.after_proj.*", "vace_blocks.#.proj_out.*"});
  return table;
}

constexpr const char* kFaceBlocks = "face_adapter.fuser_blocks.#.";
const std::string kMotion = "motion_encoder.enc.net_app.convs.";
constexpr int64_t kReleasedHalvings = 7, kMostHalvings = 12;  // of faces of 512 pixels, and of larger ones than any

/// Further rows for poses and faces, but for the last convolution.
std::vector<NamePattern> with_faces(std::vector<NamePattern> table) {
  static std::deque<std::string> texts;
  const auto add = [&](const std::string& ours, const std::string& theirs) {
    const std::string &one = texts.emplace_back(ours), &other = texts.emplace_back(theirs);
    table.push_back({one, other});
  };
  for (const auto& [ours, theirs] : {std::pair("linear1_q.*", "to_q.*"),
                                     {"linear1_k.*", "to_k.*"},
                                     {"linear1_v.*", "to_v.*"},
                                     {"linear2.*", "to_out.*"},
                                     {"q_norm.*", "norm_q.*"},
                                     {"k_norm.*", "norm_k.*"}})
    add(std::string(kFaceBlocks) + ours, std::string("face_adapter.#.") + theirs);
  for (const std::string convolution : {"conv1_local", "conv2", "conv3"})
    add("face_encoder." + convolution + ".conv.*", "face_encoder." + convolution + ".*");
  add("motion_encoder.enc.fc.#.*", "motion_encoder.motion_network.#.*");
  add("motion_encoder.dec.direction.weight", "motion_encoder.motion_synthesis_weight");
  add(kMotion + "0.0.weight", "motion_encoder.conv_in.weight");
  add(kMotion + "0.1.bias", "motion_encoder.conv_in.act_fn.bias");
  for (int64_t i = 0; i < kMostHalvings; ++i)
    for (const auto& [ours, theirs] : {std::pair("conv1.0.weight", "conv1.weight"),
                                       {"conv1.1.bias", "conv1.act_fn.bias"},
                                       {"conv2.1.weight", "conv2.weight"},
                                       {"conv2.2.bias", "conv2.act_fn.bias"},
                                       {"skip.1.weight", "conv_skip.weight"}})
      add(kMotion + std::to_string(i + 1) + "." + ours,
          "motion_encoder.res_blocks." + std::to_string(i) + "." + theirs);
  return table;
}

/// How often the motion encoder halves faces: its blocks.
int64_t halvings_of(const Shapes& official) {
  int64_t blocks = 0;
  while (official.count(kMotion + std::to_string(blocks + 1) + ".conv1.0.weight")) ++blocks;
  return std::min(blocks, kMostHalvings);
}

/// The kernels that smooth what the motion encoder halves: constants that official files have.
std::map<std::string, ConstantTensor> smoothing_kernels(const Shapes& official) {
  constexpr std::array<float, 4> kTaps = {1, 3, 3, 1};
  ConstantTensor kernel{{4, 4}, {}};
  for (const float row : kTaps)
    for (const float column : kTaps) kernel.values.push_back(row * column / 64);
  std::map<std::string, ConstantTensor> constants;
  for (int64_t i = 1; i <= halvings_of(official); ++i)
    for (const char* of : {".conv2", ".skip"}) constants[kMotion + std::to_string(i) + of + ".0.kernel"] = kernel;
  return constants;
}

ForeignNames foreign_names(const std::vector<NamePattern>& diffusers) {
  return {.diffusers = {diffusers}, .official = {official_names()}, .comfyui_prefix = "model.diffusion_model."};
}

/// Of the released tower.
constexpr const char* kImageProcessor = R"({
  "image_processor_type": "CLIPImageProcessor",
  "crop_size": {"height": 224, "width": 224},
  "size": {"shortest_edge": 224},
  "do_center_crop": true, "do_convert_rgb": true, "do_normalize": true, "do_rescale": true, "do_resize": true,
  "image_mean": [0.48145466, 0.4578275, 0.40821073],
  "image_std": [0.26862954, 0.26130258, 0.27577711],
  "resample": 3,
  "rescale_factor": 0.00392156862745098
}
)";

}  // namespace

const std::vector<NamePattern>& diffusers_names() {
  static const std::vector<NamePattern> table = {
      {"text_embedding.0.*", "condition_embedder.text_embedder.linear_1.*"},
      {"text_embedding.2.*", "condition_embedder.text_embedder.linear_2.*"},
      {"time_embedding.0.*", "condition_embedder.time_embedder.linear_1.*"},
      {"time_embedding.2.*", "condition_embedder.time_embedder.linear_2.*"},
      {"time_projection.1.*", "condition_embedder.time_proj.*"},
      {"img_emb.proj.0.*", "condition_embedder.image_embedder.norm1.*"},
      {"img_emb.proj.1.*", "condition_embedder.image_embedder.ff.net.0.proj.*"},
      {"img_emb.proj.3.*", "condition_embedder.image_embedder.ff.net.2.*"},
      {"img_emb.proj.4.*", "condition_embedder.image_embedder.norm2.*"},
      {"img_emb.emb_pos", "condition_embedder.image_embedder.pos_embed"},
      {"head.modulation", "scale_shift_table"},
      {"head.head.*", "proj_out.*"},
      {"blocks.#.modulation", "blocks.#.scale_shift_table"},
      {"blocks.#.self_attn.q.*", "blocks.#.attn1.to_q.*"},
      {"blocks.#.self_attn.k.*", "blocks.#.attn1.to_k.*"},
      {"blocks.#.self_attn.v.*", "blocks.#.attn1.to_v.*"},
      {"blocks.#.self_attn.o.*", "blocks.#.attn1.to_out.0.*"},
      {"blocks.#.self_attn.norm_*", "blocks.#.attn1.norm_*"},
      {"blocks.#.cross_attn.q.*", "blocks.#.attn2.to_q.*"},
      {"blocks.#.cross_attn.k.*", "blocks.#.attn2.to_k.*"},
      {"blocks.#.cross_attn.v.*", "blocks.#.attn2.to_v.*"},
      {"blocks.#.cross_attn.o.*", "blocks.#.attn2.to_out.0.*"},
      {"blocks.#.cross_attn.k_img.*", "blocks.#.attn2.add_k_proj.*"},
      {"blocks.#.cross_attn.v_img.*", "blocks.#.attn2.add_v_proj.*"},
      {"blocks.#.cross_attn.norm_k_img.*", "blocks.#.attn2.norm_added_k.*"},
      {"blocks.#.cross_attn.norm_*", "blocks.#.attn2.norm_*"},
      {"blocks.#.norm3.*",
       "blocks.#.norm2.*"},  // diffusers counts norms in order of use, and only this one has weights
      {"blocks.#.ffn.0.*", "blocks.#.ffn.net.0.proj.*"},
      {"blocks.#.ffn.2.*", "blocks.#.ffn.net.2.*"},
  };
  static const std::vector<NamePattern> all = with_faces(with_vace(table));
  return all;
}

const std::vector<NamePattern>& animate_diffusers_names(int64_t halvings) {
  static const auto tables = [] {
    static std::deque<std::string> texts;
    std::vector<std::vector<NamePattern>> all;
    for (int64_t i = 0; i <= kMostHalvings; ++i) {
      all.push_back(diffusers_names());
      all.back().push_back(
          {texts.emplace_back(kMotion + std::to_string(i + 1) + ".weight"), "motion_encoder.conv_out.weight"});
    }
    return all;
  }();
  return tables.at(static_cast<size_t>(std::min(halvings, kMostHalvings)));
}

const std::vector<NamePattern>& official_names() {
  static const std::vector<NamePattern> table = {
      {"face_adapter.fuser_blocks.#.linear1_k.*", "face_adapter.fuser_blocks.#.linear1_kv.0of2.*"},
      {"face_adapter.fuser_blocks.#.linear1_v.*", "face_adapter.fuser_blocks.#.linear1_kv.1of2.*"}};
  return table;
}

WeightForm weight_form() {
  return {.kind = ModelKind::denoiser,
          .title = "Wan transformers",
          .model = "wan",
          .variant = {},
          .marks = {"patch_embedding.weight", "blocks.0.self_attn.q.weight", "head.head.weight"},
          .names = foreign_names(animate_diffusers_names(kReleasedHalvings)),
          .official_only = {kMotion + "#.conv2.0.kernel", kMotion + "#.skip.0.kernel"},
          .constants = smoothing_kernels,
          .flat_in_diffusers = {kMotion + "#.#.bias", kMotion + "#.conv1.#.bias", kMotion + "#.conv2.#.bias"},
          .same_modules = {"patch_embedding", "audio_injector.injector.#.q", "audio_injector.injector.#.k",
                           "audio_injector.injector.#.v", "audio_injector.injector.#.o"},
          .refine =
              [](const Shapes& official, Identity& identity) {
                if (identity.variant.empty()) identity.variant = variant_of(official);
                identity.model = model_of(identity.variant, official);
                static const auto by_halvings = [] {
                  std::vector<ForeignNames> all;
                  for (int64_t i = 0; i <= kMostHalvings; ++i) all.push_back(foreign_names(animate_diffusers_names(i)));
                  return all;
                }();
                if (identity.variant == "animate")
                  identity.names = &by_halvings.at(static_cast<size_t>(halvings_of(official)));
              },
          .config = config_json,
          .untold = untold,
          .config_marks = {"in_dim", "num_attention_heads"}};
}

std::map<std::string, std::string> pipeline_files(const PipelineParts& parts) {
  std::map<std::string, std::string> texts;
  const std::string variant = parts.variant.empty() ? "t2v" : parts.variant;
  const bool image = variant == "i2v" || variant == "flf2v";
  const std::string transformer = class_of(variant);
  Json index = {{"_class_name", image                  ? "WanImageToVideoPipeline"
                                : variant == "vace"    ? "WanVACEPipeline"
                                : variant == "animate" ? "WanAnimatePipeline"
                                                       : "WanPipeline"},
                {"_diffusers_version", "0.35.2"}};
  if (parts.has("transformer_2")) index["boundary_ratio"] = released_boundary(image ? Type::i2v : Type::t2v);
  if (variant == "ti2v") index["expand_timesteps"] = true;
  index["scheduler"] = {"diffusers", "UniPCMultistepScheduler"};
  const std::pair<const char*, Json> kClasses[] = {{"text_encoder", {"transformers", "UMT5EncoderModel"}},
                                                   {"transformer", {"diffusers", transformer}},
                                                   {"transformer_2", {"diffusers", transformer}},
                                                   {"image_encoder", {"transformers", "CLIPVisionModel"}},
                                                   {"vae", {"diffusers", "AutoencoderKLWan"}}};
  for (const auto& [role, type] : kClasses)
    if (parts.has(role)) index[role] = type;
  if (parts.tokenizer) index["tokenizer"] = {"transformers", "T5TokenizerFast"};
  if (parts.has("image_encoder")) {
    index["image_processor"] = {"transformers", "CLIPImageProcessor"};
    texts["image_processor/preprocessor_config.json"] = kImageProcessor;
  }
  texts["model_index.json"] = index.dump(2) + "\n";
  texts["scheduler/scheduler_config.json"] = Json{{"_class_name", "UniPCMultistepScheduler"},
                                                  {"_diffusers_version", "0.35.2"},
                                                  {"flow_shift", 5.0},
                                                  {"num_train_timesteps", 1000},
                                                  {"prediction_type", "flow_prediction"},
                                                  {"use_flow_sigmas", true}}
                                                 .dump(2) +
                                             "\n";
  return texts;
}

}  // namespace tessera::models::wan
