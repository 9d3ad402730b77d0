#pragma once
// A downloaded model as people have it on disk: which of its parts lie where, in the layout of a
// family's release (families/family.h; here Wan's) or in diffusers'.
//
//   ModelFolder folder = find_parts("Wan2.1-T2V-1.3B");
//   for (const ModelPart& part : folder.parts) open_weights(part.weights);
//   if (const ModelPart* vae = folder.find("vae")) ...
//
// | part          | official layout                              | diffusers layout |
// |---------------|----------------------------------------------|------------------|
// | transformer   | the folder itself, or high_noise_model/      | transformer/     |
// | transformer_2 | low_noise_model/                             | transformer_2/   |
// | text_encoder  | models_t5_*.pth                              | text_encoder/    |
// | vae           | *VAE*.pth                                    | vae/             |
// | image_encoder | models_clip_*.pth                            | image_encoder/   |
// | tokenizer     | google/umt5-xxl/                             | tokenizer/       |
//
// Where a family's release is the denoiser alone, the other parts lie in folders beside it, as diffusers calls them.
//
// A run with a gate exports expert_0/, expert_1/ ... and gate.safetensors: layout "gate", each a part by its name.
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/file.h"

namespace tessera::checkpoint {

struct ModelPart {
  std::string role;  ///< first column above; "model" when the path is a model by itself
  Path weights;      ///< for open_weights; a tokenizer's folder
  Path config = {};  ///< its config.json; empty when there is none
};

struct ModelFolder {
  std::string layout;            ///< "official", "diffusers", "gate", or "single" when there is but one model
  std::vector<ModelPart> parts;  ///< at least one, in the order of the table
  const ModelPart* find(const std::string& role) const;
};

/// Nothing is opened. Throws UserError (input) when the path does not exist.
ModelFolder find_parts(const Path& path);

}  // namespace tessera::checkpoint
