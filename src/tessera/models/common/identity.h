#pragma once
// The identity of a file of tensors: model, naming, prefix. models/registry.h finds it.
//
//   what.model, what.naming;                                   // "wan2.1-t2v-1.3b", "diffusers"
//   what.official("transformer_blocks...");                    // the official name of a stored tensor
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/common/names.h"

namespace tessera::models {

struct WeightForm;  // models/common/weight_form.h

using Shapes = std::map<std::string, std::vector<int64_t>>;

/// The names of a model's tensors in other programs.
struct ForeignNames {
  KeyMap diffusers;      ///< ours -> diffusers
  KeyMap official = {};  ///< ours -> official; empty: the same
  KeyMap fused = {};     ///< ours -> files that hold queries, keys and values together; empty: there are none
  /// Second names of tied tensors under diffusers' naming, and their official ones.
  std::vector<std::pair<std::string, std::string>> tied = {};
  std::string comfyui_prefix = {};    ///< ComfyUI's names are the official ones behind it,
  bool comfyui_as_diffusers = false;  ///< or those of diffusers
  bool ours_are_diffusers = false;    ///< our names, and so all files that have no other ones, are diffusers'
};

enum class ModelKind { unknown, denoiser, vae, text_encoder, image_encoder, audio_encoder, lora };

struct Identity {
  ModelKind kind = ModelKind::unknown;
  std::string model = "unknown";        ///< the preset with these sizes, else the architecture ("wan-t2v", "umt5")
  std::string variant;                  ///< denoisers: t2v, i2v, flf2v, ti2v, s2v; autoencoders: 2.1, 2.2
  std::string naming = "unknown";       ///< official, diffusers, fused, comfyui, diffsynth, tessera; LoRA: peft, ...
  std::string prefix;                   ///< in front of every name
  const ForeignNames* names = nullptr;  ///< of the form, or of a model of these sizes (WeightForm::refine)
  const WeightForm* form = nullptr;     ///< the form whose marks it has; null: unknown, or a LoRA

  /// Our name of a stored tensor, which is the official one but for families that say otherwise; nullopt for a tensor
  /// that the model does not have (one without the prefix, the second name of a tied embedding).
  std::optional<std::string> official(const std::string& stored) const;
  /// The names of the parts that the stored tensor is of ours (row_part.h); none where it is one of ours as it is.
  std::vector<std::string> parts(const std::string& stored) const;
  /// The name under another naming: official, diffusers, fused, comfyui, tessera.
  std::string foreign(const std::string& official, const std::string& naming) const;

 private:
  const KeyMap* map() const;  ///< ours -> the naming of the file; null: the same names
};

/// The same tensors under their official names.
Shapes official_shapes(const Identity& identity, const Shapes& stored);

/// What a file numbers from here on is no block: no model has so many.
inline constexpr int64_t kMostBlocks = int64_t{1} << 20;

/// One more than the highest N of "blocks.N.", summed over the lists whose names end in "blocks" or "layers": the number
/// of layers.
int64_t count_blocks(const Shapes& official);
/// A size of a tensor; 0 where there is no such tensor or dimension.
int64_t size_of(const Shapes& official, const std::string& name, size_t dim);
/// The preset of a causal language model with the vocabulary, the width and the blocks of the weights; null: none has them.
template <class Config>
const std::pair<std::string, Config>* preset_of(const std::vector<std::pair<std::string, Config>>& presets,
                                                const Shapes& official) {
  for (const auto& preset : presets)
    if (preset.second.vocab_size == size_of(official, "embed_tokens.weight", 0) &&
        preset.second.dim == size_of(official, "embed_tokens.weight", 1) &&
        preset.second.num_layers == count_blocks(official))
      return &preset;
  return nullptr;
}

}  // namespace tessera::models
