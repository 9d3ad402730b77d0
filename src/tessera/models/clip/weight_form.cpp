#include "tessera/models/clip/weight_form.h"

#include "tessera/models/clip/config.h"
#include "tessera/models/clip/names.h"

namespace tessera::models::clip {

namespace {

using Json = nlohmann::ordered_json;

std::string model_of(const Shapes& official) {
  for (const auto& [name, config] : presets())
    if (config.dim == size_of(official, "visual.patch_embedding.weight", 0) &&
        config.mlp_dim == size_of(official, "visual.transformer.0.mlp.0.weight", 0))
      return name;
  return "clip-vision";
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

}  // namespace

WeightForm weight_form() {
  return {.kind = ModelKind::image_encoder,
          .title = "CLIP",
          .model = "clip-vision",
          .variant = {},
          .marks = {"visual.patch_embedding.weight", "visual.pre_norm.weight", "visual.transformer.0.norm1.weight"},
          .names = {.diffusers = {hf_names()}},
          .refine = [](const Shapes& official, Identity& identity) { identity.model = model_of(official); },
          .config = config_json,
          .config_marks = {"image_size"}};
}

}  // namespace tessera::models::clip
