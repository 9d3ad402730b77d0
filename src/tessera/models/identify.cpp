#include "tessera/models/identify.h"

#include <algorithm>
#include <charconv>

#include "tessera/models/clip/config.h"
#include "tessera/models/clip/names.h"
#include "tessera/models/lora_names.h"
#include "tessera/models/text/umt5.h"
#include "tessera/models/text/umt5_names.h"
#include "tessera/models/vae/wan_names.h"
#include "tessera/models/wan/config.h"
#include "tessera/models/wan/parameters.h"

namespace tessera::models {

namespace {

constexpr std::string_view kComfyPrefix = "model.diffusion_model.";
constexpr std::string_view kTied = "encoder.embed_tokens.weight";  // of transformers; the same tensor as shared.weight

/// A model is there when all its marks (official names) are.
struct Known {
  ModelKind kind;
  std::string model, variant;
  std::vector<std::string> marks;
  KeyMap names;
};

const std::vector<Known>& known_models() {
  static const std::vector<Known> table = {
      {ModelKind::denoiser,
       "wan",
       "",
       {"patch_embedding.weight", "blocks.0.self_attn.q.weight", "head.head.weight"},
       {wan::diffusers_names()}},
      {ModelKind::vae,
       "wan2.1-vae",
       "2.1",
       {"encoder.downsamples.0.residual.2.weight", "decoder.upsamples.4.residual.2.weight", "conv2.weight"},
       wan21_vae_names()},
      {ModelKind::vae,
       "wan2.2-vae",
       "2.2",
       {"encoder.downsamples.0.downsamples.0.residual.2.weight", "decoder.upsamples.0.upsamples.0.residual.2.weight",
        "conv2.weight"},
       wan22_vae_names()},
      {ModelKind::text_encoder,
       "umt5",
       "",
       {"blocks.0.ffn.gate.0.weight", "blocks.0.attn.q.weight", "norm.weight"},
       {umt5::hf_names()}},
      {ModelKind::image_encoder,
       "clip-vision",
       "",
       {"visual.patch_embedding.weight", "visual.pre_norm.weight", "visual.transformer.0.norm1.weight"},
       {clip::hf_names()}},
      {ModelKind::audio_encoder,
       "wav2vec2",
       "",
       {"wav2vec2.feature_projection.projection.weight", "wav2vec2.encoder.layers.0.attention.q_proj.weight"},
       {}},
  };
  return table;
}

std::string naming_of(const std::string& naming, const std::string& prefix) {
  if (naming != "official" || prefix.empty()) return naming;
  if (prefix == "pipe.dit.") return "diffsynth";
  return prefix.ends_with("diffusion_model.") ? "comfyui" : "official";
}

int64_t size_of(const Shapes& shapes, const std::string& name, size_t dim) {
  const auto found = shapes.find(name);
  return found == shapes.end() || dim >= found->second.size() ? 0 : found->second[dim];
}

/// The preset of this type and these sizes, or nothing.
std::string wan_preset(std::string_view variant, const Shapes& official) {
  for (const auto& [preset, config] : wan::presets())
    if (wan::name(config.type) == variant && config.dim == size_of(official, "patch_embedding.weight", 0) &&
        config.num_layers == count_blocks(official) &&
        config.ffn_dim == size_of(official, "blocks.0.ffn.0.weight", 0) &&
        config.in_dim == size_of(official, "patch_embedding.weight", 1) &&
        config.text_dim == size_of(official, "text_embedding.0.weight", 1) &&
        config.has_image_branch() == (official.count("img_emb.proj.1.weight") > 0))
      return preset;
  return {};
}

std::string wan_variant(const Shapes& official) {
  const auto has = [&](const char* name) { return official.count(name) > 0; };
  if (has("casual_audio_encoder.weights")) return "s2v";
  if (has("img_emb.emb_pos")) return "flf2v";
  if (has("blocks.0.cross_attn.k_img.weight")) return "i2v";
  switch (size_of(official, "patch_embedding.weight", 1)) {
    case 36:
      return "i2v";  // Wan 2.2 has no image branch, only more channels
    case 48:         // Wan 2.2's autoencoder, or a wavelet as wide
      return wan_preset("t2v", official).empty() ? "ti2v" : "t2v";
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
constexpr Release kReleases[] = {{"i2v", 5120, 40, true, "wan2.1-i2v-14b"},
                                 {"flf2v", 5120, 40, true, "wan2.1-flf2v-14b"},
                                 {"i2v", 5120, 40, false, "wan2.2-i2v-a14b"},
                                 {"ti2v", 3072, 30, false, "wan2.2-ti2v-5b"},
                                 {"s2v", 5120, 40, false, "wan2.2-s2v-14b"}};

std::string wan_model(const std::string& variant, const Shapes& official) {
  const int64_t dim = size_of(official, "patch_embedding.weight", 0), layers = count_blocks(official);
  const bool image_branch = official.count("img_emb.proj.1.weight") > 0;
  for (const Release& r : kReleases)
    if (r.variant == variant && r.dim == dim && r.layers == layers && r.image_branch == image_branch) return r.model;
  if (const std::string preset = wan_preset(variant, official); !preset.empty()) return preset;
  return "wan-" + variant;
}

std::string umt5_model(const Shapes& official) {
  for (const auto& [name, config] : umt5::presets())
    if (config.vocab_size == size_of(official, "token_embedding.weight", 0) &&
        config.dim == size_of(official, "token_embedding.weight", 1) && config.num_layers == count_blocks(official))
      return name;
  return "umt5";
}

std::string clip_model(const Shapes& official) {
  for (const auto& [name, config] : clip::presets())
    if (config.dim == size_of(official, "visual.patch_embedding.weight", 0) &&
        config.mlp_dim == size_of(official, "visual.transformer.0.mlp.0.weight", 0))
      return name;
  return "clip-vision";
}

std::optional<Identity> lora_identity(const Shapes& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, shape] : tensors) names.push_back(name);
  const auto lora = detect_lora_names(names);
  if (!lora) return std::nullopt;
  Identity result;
  result.kind = ModelKind::lora;
  result.model = "lora";
  result.naming = lora->naming;
  result.prefix = lora->prefix;
  return result;
}

}  // namespace

std::optional<std::string> Identity::official(const std::string& stored) const {
  if (!stored.starts_with(prefix)) return std::nullopt;
  const std::string name = stored.substr(prefix.size());
  if (!names || naming != "diffusers") return name;
  if (kind == ModelKind::text_encoder && name == kTied) return "token_embedding.weight";
  return to_official(*names, name);
}

std::string Identity::foreign(const std::string& official, const std::string& to) const {
  if (to == "comfyui" && kind == ModelKind::denoiser) return std::string(kComfyPrefix) + official;
  // ComfyUI takes Wan's autoencoder under its official names and the text encoder under those of transformers
  const bool renamed = to == "diffusers" || (to == "comfyui" && kind == ModelKind::text_encoder);
  return renamed && names ? to_foreign(*names, official) : official;
}

int64_t count_blocks(const Shapes& official) {
  constexpr std::string_view kBlocks = "blocks.";
  int64_t most = 0;
  for (const auto& [name, shape] : official) {
    int64_t index = 0;
    if (!name.starts_with(kBlocks)) continue;
    const auto [end, error] = std::from_chars(name.data() + kBlocks.size(), name.data() + name.size(), index);
    if (error == std::errc() && *end == '.') most = std::max(most, index + 1);
  }
  return most;
}

Shapes official_shapes(const Identity& identity, const Shapes& stored) {
  Shapes result;
  for (const auto& [name, shape] : stored)
    if (const auto official = identity.official(name)) result.emplace(*official, shape);
  return result;
}

Identity identify(const Shapes& tensors) {
  if (const auto lora = lora_identity(tensors)) return *lora;
  for (const Known& known : known_models()) {
    for (const bool diffusers : {false, true}) {
      for (const std::string& prefix : kOptionalPrefixes) {
        const bool found = std::all_of(known.marks.begin(), known.marks.end(), [&](const std::string& mark) {
          return tensors.count(prefix + (diffusers ? to_foreign(known.names, mark) : mark)) > 0;
        });
        if (!found) continue;
        Identity result{known.kind, known.model, known.variant, "", prefix, &known.names};
        result.naming = naming_of(diffusers ? "diffusers" : "official", prefix);
        const Shapes official = official_shapes(result, tensors);
        if (known.kind == ModelKind::denoiser) {
          result.variant = wan_variant(official);
          result.model = wan_model(result.variant, official);
        }
        if (known.kind == ModelKind::image_encoder) result.model = clip_model(official);
        if (known.kind == ModelKind::text_encoder) result.model = umt5_model(official);
        return result;
      }
    }
  }
  return {};
}

}  // namespace tessera::models
