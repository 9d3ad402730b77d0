#include "tessera/models/encoders/clip_vision.h"

#include "tessera/base/check.h"
#include "tessera/models/common/initial.h"
#include "tessera/models/common/picture_resize.h"
#include "tessera/models/encoders/configs.h"
#include "tessera/net/declare.h"

namespace tessera::models::clip {

using at::Tensor;
using net::Context;
using net::Flow;

namespace {

class Embedding final : public net::Unit {
 public:
  explicit Embedding(const Config& c) : Unit({.name = "embedding", .kind = "embedding"}, "visual."), c_(c) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const net::Linear patch{.out = c_.dim, .bias = c_.siglip, .kernel = {c_.patch, c_.patch}};
    const Tensor patches = ctx.linear("patch_embedding", in.stream[0], patch).view({-1, c_.patches(), c_.dim});
    if (c_.siglip) return {{(patches + ctx.param("pos_embedding", {1, c_.rows(), c_.dim})).view({-1, c_.dim})}, {}};
    const Tensor first = ctx.param("cls_embedding", {1, 1, c_.dim}).expand({patches.size(0), 1, c_.dim});
    const Tensor x =
        at::cat({first, patches}, 1) + ctx.param("pos_embedding", {1, c_.rows(), c_.dim});  // [B, rows, dim]
    return {{ctx.norm("pre_norm", x.view({-1, c_.dim}), {.eps = c_.eps})}, {}};             // [B * rows, dim]
  }

 private:
  const Config c_;
};

class Block final : public net::Unit {
 public:
  Block(const Config& c, const std::string& name)
      : Unit({.name = name, .kind = "block"}, "visual." + name + "."), c_(c) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    Tensor x = in.stream[0];  // x [B * rows, dim]
    const auto qkv = ctx.linear("attn.to_qkv", ctx.norm("norm1", x, {.eps = c_.eps}), {.out = 3 * c_.dim}).chunk(3, 1);
    const Tensor y = ctx.attention("attn", qkv[0].contiguous(), qkv[1].contiguous(), qkv[2].contiguous(), c_.num_heads);
    x = x + ctx.linear("attn.proj", y);
    const Tensor normed = ctx.norm("norm2", x, {.eps = c_.eps});
    const Tensor hidden = at::gelu(ctx.linear("mlp.0", normed, {.out = c_.mlp_dim}), c_.siglip ? "tanh" : "none");
    return {{x + ctx.linear("mlp.2", hidden, {.out = c_.dim})}, {}};
  }

 private:
  const Config c_;
};

class LastNorm final : public net::Unit {
 public:
  explicit LastNorm(const Config& c) : Unit({.name = "post_norm", .kind = "norm"}, "visual."), eps_(c.eps) {}
  Flow forward(Context& ctx, const Flow& in) const override {
    return {{ctx.norm("post_norm", in.stream[0], {.eps = eps_})}, {}};
  }

 private:
  const double eps_;
};

Tensor per_colour(const std::array<double, 3>& values) {
  return at::tensor({values[0], values[1], values[2]}, at::kFloat).view({3, 1, 1});
}

}  // namespace

ClipVision::ClipVision(const Config& config, bool last_block) : config_(config) {
  units_.push_back(std::make_unique<Embedding>(config));
  const int64_t blocks = config.num_layers - (last_block || config.siglip ? 0 : 1);
  for (int64_t i = 0; i < blocks; ++i)
    units_.push_back(std::make_unique<Block>(config, "transformer." + std::to_string(i)));
  if (config.siglip) units_.push_back(std::make_unique<LastNorm>(config));
  net::declare_frozen(units_, {{net::sizes_of(config.patches(), 3 * config.patch * config.patch)}, {}}, config.rows());
}

Tensor ClipVision::preprocess(const Tensor& picture) const {
  check_internal(picture.dim() == 3 && picture.size(0) == 3, "models.clip", "a picture is [3, H, W]");
  if (config_.siglip) return squared(picture).permute({2, 0, 1}).to(at::kFloat).mul_(1.0 / 255).sub_(0.5).div_(0.5);
  const int64_t side = config_.image_size;
  const Tensor square = at::upsample_bicubic2d(picture.to(at::kFloat).unsqueeze(0), {side, side},
                                               /*align_corners=*/false, std::nullopt, std::nullopt);
  return (square[0] * 0.5 + 0.5 - per_colour(config_.mean)) / per_colour(config_.deviation);
}

Tensor cut_to_bytes(const Tensor& pixels) {
  return ((pixels.to(at::kFloat) + 1) / 2 * 255).clamp_(0, 255).to(at::kByte);
}

Tensor ClipVision::squared(const Tensor& picture) const {
  const Tensor bytes = picture.scalar_type() == at::kByte ? picture : cut_to_bytes(picture);
  return resized(bytes.permute({1, 2, 0}), config_.image_size, config_.image_size, Filter::bicubic);
}

net::Batch ClipVision::pack(const std::vector<Tensor>& pixels) const {
  net::Batch batch;
  batch.token_inputs = {};  // the tower is small: ranks do not share its tokens
  batch.tokens.offsets = {0};
  std::vector<Tensor> all;
  const int64_t n = config_.side(), p = config_.patch;
  for (const Tensor& picture : pixels) {
    const Tensor whole = picture.narrow(1, 0, n * p).narrow(2, 0, n * p);
    all.push_back(whole.reshape({3, n, p, n, p}).permute({1, 3, 0, 2, 4}).reshape({n * n, 3 * p * p}));
    batch.tokens.offsets.push_back(batch.tokens.offsets.back() + rows());
  }
  batch.inputs = {at::cat(all).to(at::kFloat)};
  return batch;
}

std::string ClipVision::fingerprint() const {
  const Config& c = config_;
  std::string text = c.siglip ? "siglip" : "clip";
  for (const int64_t size : {c.image_size, c.patch, c.dim, c.mlp_dim, c.num_heads, c.num_layers})
    text += "-" + std::to_string(size);
  return text;
}

void ClipVision::initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count,
                            float* out) const {
  const std::string_view name = param.name;
  Initial initial = Initial::normal(1 / std::sqrt(static_cast<double>(config_.dim)));
  if (name.ends_with(".bias")) initial = Initial::constant(0);
  if (name.find("norm") != name.npos && name.ends_with(".weight")) initial = Initial::constant(1);
  draw_initial(initial, seed, param.name, first, count, out);
}

const std::vector<NamePattern>& hf_names() {
  static const std::vector<NamePattern> table = {
      {"visual.cls_embedding", "embeddings.class_embedding"},
      {"visual.patch_embedding.*", "embeddings.patch_embedding.*"},
      {"visual.pos_embedding", "embeddings.position_embedding.weight"},
      {"visual.pre_norm.*", "pre_layrnorm.*"},  // sic
      {"visual.post_norm.*", "post_layernorm.*"},
      {"visual.transformer.#.norm1.*", "encoder.layers.#.layer_norm1.*"},
      {"visual.transformer.#.norm2.*", "encoder.layers.#.layer_norm2.*"},
      {"visual.transformer.#.attn.proj.*", "encoder.layers.#.self_attn.out_proj.*"},
      {"visual.transformer.#.mlp.0.*", "encoder.layers.#.mlp.fc1.*"},
      {"visual.transformer.#.mlp.2.*", "encoder.layers.#.mlp.fc2.*"},
  };
  return table;
}

std::vector<std::string> stored_parts(const std::string& official, const std::string& naming) {
  if (naming == "official") return {official};
  constexpr std::string_view kFused = ".attn.to_qkv.";
  const size_t at = official.find(kFused);
  if (at == official.npos) return {rename(hf_names(), official)};
  const std::string block = rename({{"visual.transformer.#", "encoder.layers.#"}}, official.substr(0, at));
  const std::string end = official.substr(at + kFused.size());
  std::vector<std::string> parts;
  for (const char* projection : {"q_proj", "k_proj", "v_proj"})
    parts.push_back(block + ".self_attn." + projection + "." + end);
  return parts;
}

namespace {

using Json = nlohmann::ordered_json;

std::string model_of(const Shapes& official, bool siglip) {
  for (const auto& [name, config] : presets())
    if (config.siglip == siglip && config.dim == size_of(official, "visual.patch_embedding.weight", 0) &&
        config.mlp_dim == size_of(official, "visual.transformer.0.mlp.0.weight", 0))
      return name;
  return siglip ? "siglip" : "clip-vision";
}

Json config_json(const ConfigSource& source) {
  const auto& [diffusers, identity, size, given, file] = source;
  Json out;
  Config c = config_of(size.shapes, file);
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
  return out;
}

Json siglip_json(const ConfigSource& source) {
  Config c = config_of(source.size.shapes, source.file);
  Json out = source.given.base("hidden_size");
  c.num_heads = source.given.get<int64_t>("num_attention_heads", "num_attention_heads", c.num_heads);
  out.update(Json{{"architectures", {"SiglipVisionModel"}},
                  {"model_type", "siglip_vision_model"},
                  {"hidden_size", c.dim},
                  {"intermediate_size", c.mlp_dim},
                  {"num_hidden_layers", c.num_layers},
                  {"num_attention_heads", c.num_heads},
                  {"image_size", source.given.get<int64_t>("image_size", "image_size", c.image_size)},
                  {"patch_size", c.patch},
                  {"hidden_act", "gelu_pytorch_tanh"},
                  {"layer_norm_eps", source.given.get<double>("layer_norm_eps", "layer_norm_eps", c.eps)}});
  return out;
}

}  // namespace

WeightForm weight_form() {
  return {.kind = ModelKind::image_encoder,
          .title = "CLIP",
          .model = "clip-vision",
          .variant = {},
          .marks = {"visual.patch_embedding.weight", "visual.pre_norm.weight", "visual.transformer.0.norm1.weight"},
          .names = {.diffusers = {hf_names()}},
          .refine = [](const Shapes& official, Identity& identity) { identity.model = model_of(official, false); },
          .config = config_json,
          .config_marks = {"image_size"}};
}

/// All programs have transformers' names for it.
WeightForm siglip_weight_form() {
  return {.kind = ModelKind::image_encoder,
          .title = {},
          .model = "siglip",
          .variant = {},
          .marks = {"visual.patch_embedding.bias", "visual.post_norm.weight", "visual.transformer.0.norm1.weight"},
          .names = {.diffusers = {hf_names()}},
          .refine = [](const Shapes& official, Identity& identity) { identity.model = model_of(official, true); },
          .config = siglip_json,
          .config_marks = {"image_size"}};
}

}  // namespace tessera::models::clip
