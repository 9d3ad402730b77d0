#include "tessera/models/clip/names.h"

#include "tessera/models/clip/clip_vision.h"

namespace tessera::models::clip {

const std::vector<NamePattern>& hf_names() {
  static const std::vector<NamePattern> table = {
      {"visual.cls_embedding", "embeddings.class_embedding"},
      {"visual.patch_embedding.weight", "embeddings.patch_embedding.weight"},
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

}  // namespace tessera::models::clip
