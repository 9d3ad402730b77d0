#include "tessera/models/foreign_config.h"

#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/models/clip/config.h"
#include "tessera/models/vae/wan_statistics.h"

namespace tessera::models {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kHeadDim = 128;  // of every released Wan denoiser
constexpr const char* kOfficialVersion = "0.30.0";

/// Shapes by name, with an error for what is missing.
struct Sizes {
  const Shapes& shapes;
  int64_t operator()(const std::string& name, size_t dim) const {
    const auto found = shapes.find(name);
    if (found == shapes.end() || dim >= found->second.size() || found->second[dim] <= 0)
      throw UserError(Exit::input, "models.config", "the weights lack " + name + ", which tells the model's sizes",
                      "the file is not whole: fetch it again");
    return found->second[dim];
  }
  bool has(const std::string& name) const { return shapes.count(name) > 0; }
};

/// The given config of one form ("dim" and the like), under the name that the other form has for it.
struct Given {
  Json json;
  template <class T>
  T get(const char* official, const char* diffusers, T absent) const {
    for (const char* key : {official, diffusers})
      if (json.contains(key) && !json[key].is_null()) return json[key].template get<T>();
    return absent;
  }
  /// What the result begins with: the given one where it is of the same form, so that further fields stay.
  Json base(const char* mark) const { return json.contains(mark) ? json : Json::object(); }
};

void wan_config(bool diffusers, const Identity& identity, const Sizes& size, const Given& given, Json& out) {
  const int64_t dim = size("patch_embedding.weight", 0);
  const int64_t heads = given.get<int64_t>("num_heads", "num_attention_heads", dim / kHeadDim);
  if (heads <= 0 || dim % heads != 0)
    throw UserError(Exit::input, "models.config",
                    std::to_string(dim) + " channels do not divide into " + std::to_string(heads) + " heads",
                    "put the model's config.json beside the weights");
  const std::vector<int64_t> patch = {size("patch_embedding.weight", 2), size("patch_embedding.weight", 3),
                                      size("patch_embedding.weight", 4)};
  const int64_t text_dim = size("text_embedding.0.weight", 1), layers = count_blocks(size.shapes);
  const int64_t out_dim = size("head.head.weight", 0) / (patch[0] * patch[1] * patch[2]);
  const int64_t text_len = given.get<int64_t>("text_len", "text_len", 512);
  const double eps = given.get<double>("eps", "eps", 1e-6);
  const bool image = size.has("img_emb.proj.1.weight");
  const int64_t image_len =
      size.has("img_emb.emb_pos") ? size("img_emb.emb_pos", 1) / 2 : given.get<int64_t>("image_len", "image_len", 257);
  if (diffusers) {
    if (identity.variant == "s2v")
      throw UserError(Exit::input, "models.config", "diffusers has no class for Wan's speech-to-video model",
                      "keep the official names");
    out = given.base("num_attention_heads");
    out.update(Json{{"_class_name", "WanTransformer3DModel"},
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
    // no fields of the class, but what the way back needs
    if (text_len != 512) out["text_len"] = text_len;
    if (image && image_len != 257) out["image_len"] = image_len;
    if (const auto type = given.get<std::string>("model_type", "model_type", identity.variant);
        type != identity.variant || (type == "t2v" && size("patch_embedding.weight", 1) == 48))
      out["model_type"] = type;
    return;
  }
  out = given.base("num_heads");
  out.update(Json{{"_class_name", "WanModel"},
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
  // the official file leaves these to defaults
  if (text_dim != 4096) out["text_dim"] = text_dim;
  if (image && size("img_emb.proj.1.weight", 1) != 1280) out["image_dim"] = size("img_emb.proj.1.weight", 1);
  if (image && image_len != 257) out["image_len"] = image_len;
}

void vae_config(bool diffusers, const Identity& identity, const Sizes& size, const Given& given, Json& out) {
  const bool two = identity.variant == "2.2";
  const int64_t channels = size("conv2.weight", 0), base = size("encoder.conv1.weight", 0);
  const Json mean = given.get<Json>("mean", "latents_mean", two ? Json(kWan22Mean) : Json(kWan21Mean));
  const Json deviation = given.get<Json>("std", "latents_std", two ? Json(kWan22Std) : Json(kWan21Std));
  out = given.base(diffusers ? "latents_mean" : "mean");
  out["_class_name"] = diffusers ? "AutoencoderKLWan" : "WanVAE_";
  out[diffusers ? "base_dim" : "dim"] = base;
  if (two) out[diffusers ? "decoder_base_dim" : "dec_dim"] = size("decoder.head.2.weight", 1);
  out["z_dim"] = channels;
  const std::pair<const char*, Json> kAlike[] = {{"dim_mult", {1, 2, 4, 4}},
                                                 {"num_res_blocks", 2},
                                                 {"attn_scales", Json::array()},
                                                 {"temperal_downsample", {false, true, true}},
                                                 {"dropout", 0.0}};
  for (const auto& [key, usual] : kAlike) out[key] = given.get<Json>(key, key, usual);
  out[diffusers ? "latents_mean" : "mean"] = mean;
  out[diffusers ? "latents_std" : "std"] = deviation;
  if (diffusers && two)
    out.update(Json{{"is_residual", true},
                    {"in_channels", size("encoder.conv1.weight", 1)},
                    {"out_channels", size("decoder.head.2.weight", 0)},
                    {"patch_size", 2},
                    {"scale_factor_spatial", 16},
                    {"scale_factor_temporal", 4}});
}

void umt5_config(bool diffusers, const Sizes& size, const Given& given, Json& out) {
  const int64_t heads = size("blocks.0.pos_embedding.embedding.weight", 1);
  const int64_t attention = size("blocks.0.attn.q.weight", 0), layers = count_blocks(size.shapes);
  out = given.base(diffusers ? "d_model" : "dim_attn");
  out["vocab_size"] = size("token_embedding.weight", 0);
  if (!diffusers) {
    out.update(Json{{"_class_name", "T5Encoder"},
                    {"dim", size("token_embedding.weight", 1)},
                    {"dim_attn", attention},
                    {"dim_ffn", size("blocks.0.ffn.fc1.weight", 0)},
                    {"num_heads", heads},
                    {"num_layers", layers},
                    {"num_buckets", size("blocks.0.pos_embedding.embedding.weight", 0)},
                    {"shared_pos", false},
                    {"dropout", given.get<double>("dropout", "dropout_rate", 0.1)}});
    return;
  }
  out.update(Json{
      {"_class_name", "UMT5EncoderModel"},
      {"architectures", {"UMT5EncoderModel"}},
      {"model_type", "umt5"},
      {"d_model", size("token_embedding.weight", 1)},
      {"d_kv", attention / heads},
      {"d_ff", size("blocks.0.ffn.fc1.weight", 0)},
      {"num_layers", layers},
      {"num_heads", heads},
      {"relative_attention_num_buckets", size("blocks.0.pos_embedding.embedding.weight", 0)},
      {"relative_attention_max_distance", given.get<int64_t>("relative_attention_max_distance", "max_distance", 128)},
      {"dropout_rate", given.get<double>("dropout", "dropout_rate", 0.1)},
      {"layer_norm_epsilon", given.get<double>("eps", "layer_norm_epsilon", 1e-6)},
      {"feed_forward_proj", "gated-gelu"},
      {"dense_act_fn", "gelu_new"},
      {"is_gated_act", true},
      {"is_encoder_decoder", true},
      {"pad_token_id", 0},
      {"eos_token_id", 1},
      {"decoder_start_token_id", 0},
      {"tie_word_embeddings", false},
      {"scalable_attention", true}});
}

void clip_config(bool diffusers, const Sizes& size, const Given& given, const std::string& file, Json& out) {
  clip::Config c = clip::config_of(size.shapes, file);
  c.num_heads = given.get<int64_t>("num_heads", "num_attention_heads", c.num_heads);
  const int64_t projection =
      size.has("visual.head") ? size("visual.head", 1) : given.get<int64_t>("out_dim", "projection_dim", 1024);
  out = given.base(diffusers ? "hidden_size" : "dim");
  if (diffusers)
    out.update(Json{{"_class_name", "CLIPVisionModel"},
                    {"architectures", {"CLIPVisionModel"}},
                    {"model_type", "clip_vision_model"},
                    {"hidden_size", c.dim},
                    {"intermediate_size", c.mlp_dim},
                    {"num_hidden_layers", c.num_layers},
                    {"num_attention_heads", c.num_heads},
                    {"hidden_act", "gelu"},
                    {"layer_norm_eps", c.eps},
                    {"projection_dim", projection}});
  else
    out.update(Json{{"_class_name", "VisionTransformer"},
                    {"dim", c.dim},
                    {"mlp_ratio", static_cast<double>(c.mlp_dim) / static_cast<double>(c.dim)},
                    {"num_layers", c.num_layers},
                    {"num_heads", c.num_heads},
                    {"out_dim", projection},
                    {"pool_type", "token"},
                    {"pre_norm", true},
                    {"post_norm", false},
                    {"activation", "gelu"},
                    {"norm_eps", c.eps},
                    {"mean", c.mean},
                    {"std", c.deviation}});
  out["image_size"] = c.image_size;
  out["patch_size"] = c.patch;
}

/// The given config, unless it is the one of another model that lies beside this one.
Json relevant(const std::string& text, const Identity& identity) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Json::object();
  const auto any = [&](std::initializer_list<const char*> keys) {
    for (const char* key : keys)
      if (json.contains(key)) return true;
    return false;
  };
  const bool fits = identity.kind == ModelKind::denoiser        ? any({"in_dim", "num_attention_heads"})
                    : identity.kind == ModelKind::vae           ? any({"mean", "latents_mean", "z_dim"})
                    : identity.kind == ModelKind::image_encoder ? any({"image_size"})
                                                                : any({"dim_attn", "d_model"});
  return fits ? json : Json::object();
}

}  // namespace

std::string config_for(const std::string& to, const Identity& identity, const Shapes& official,
                       const std::string& given_text, const std::string& file) {
  const bool diffusers = to == "diffusers";
  const Sizes size{official};
  Json out = Json::object();
  try {
    const Given given{relevant(given_text, identity)};
    if (identity.kind == ModelKind::denoiser)
      wan_config(diffusers, identity, size, given, out);
    else if (identity.kind == ModelKind::vae)
      vae_config(diffusers, identity, size, given, out);
    else if (identity.kind == ModelKind::image_encoder)
      clip_config(diffusers, size, given, file, out);
    else if (identity.kind == ModelKind::text_encoder)
      umt5_config(diffusers, size, given, out);
    else
      return {};
  } catch (const Json::exception& error) {
    throw UserError(Exit::input, "models.config", file + ": a field is not of its type: " + error.what(),
                    "check the file, or remove it: most sizes are in the weights");
  }
  return out.dump(2) + "\n";
}

double released_boundary(bool pictures) { return pictures ? 0.9 : 0.875; }

}  // namespace tessera::models
