#pragma once
// What a folder holds of a model: every part, wherever programs put it. Whoever wants a part asks here.
//
//   ModelFolder folder = find_parts("Wan2.1-T2V-1.3B");
//   for (const ModelPart& part : folder.parts) open_weights(part.weights);
//   open_weights(find_part("Wan2.1-T2V-1.3B", "vae").weights);
//   find_facts("Wan2.2-T2V-A14B-Diffusers").boundary;                              // 0.875
//
// | part           | official layout (families/family.h; here Wan's) | diffusers       | ComfyUI                   |
// |----------------|-------------------------------------------------|-----------------|---------------------------|
// | transformer    | the folder itself, or high_noise_model/         | transformer/    | diffusion_models/, unet/  |
// | transformer_2  | low_noise_model/                                | transformer_2/  | the file of low_noise     |
// | text_encoder   | models_t5_*.pth                                 | text_encoder/   | text_encoders/, clip/     |
// | text_encoder_2 | Open-Sora's openai/clip-vit-large-patch14/      | text_encoder_2/ | clip_l or byt5 there      |
// | vae            | *VAE*.pth                                       | vae/            | vae/                      |
// | image_encoder  | models_clip_*.pth                               | image_encoder/  | clip_vision/              |
// | audio_encoder  | wav2vec2*/                                      | audio_encoder/  | audio_encoders/           |
// | tokenizer      | google/umt5-xxl/                                | tokenizer/      | as the official layout    |
// | tokenizer_2    | Open-Sora's openai/clip-vit-large-patch14/      | tokenizer_2/    |                           |
//
// A folder of the hub's cache (models--ORG--NAME) stands for its snapshot. DiffSynth keeps encoders once for all models,
// beside the folders of the releases; ComfyUI's folders may lie in split_files/ or models/. Where a family's release is
// the denoiser alone, the other parts lie in folders beside it, as diffusers calls them. Which files of a part's folder
// are its weights open_weights knows. HunyuanVideo-1.5's release has several denoisers in transformer/: it is that part where
// there is one.
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
  /// "official", "diffusers", "comfyui", "diffsynth", "gate", or "single" when there is but one model
  std::string layout;
  std::vector<ModelPart> parts;  ///< at least one, in the order of the table
  Path path = {};                ///< what was asked for; of the hub's cache the snapshot
  const ModelPart* find(const std::string& role) const;
};

/// No weights are opened. Throws UserError (input) when the path does not exist.
ModelFolder find_parts(const Path& path);

/// The part of a role at `path`: in a folder of several, else what is there by itself. "pooled_encoder" and
/// "pooled_tokenizer" are those of CLIP and "text_encoder" and "tokenizer" the other ones, whichever of two a pipeline
/// numbers first. A single file has no config.json but NAME.config.json. Throws UserError (input) naming what is there
/// for a folder without such a part.
ModelPart find_part(const Path& path, const std::string& role);

/// What a base says of how it was trained: model_index.json and scheduler/ of a pipeline, or experts.json, which runs
/// with two experts export.
struct ModelFacts {
  std::optional<double> boundary, flow_shift;
  Path file = {};  ///< that says the boundary
};
inline constexpr const char* kExpertsFile = "experts.json";
/// Of the folder, or of the one that holds it where it is that of one expert. What is missing or no number is nothing.
ModelFacts find_facts(const Path& path);
std::string experts_text(const ModelFacts& facts);  ///< of an experts.json

// Models of the Hugging Face hub in the cache that its clients keep on this machine. Nothing is fetched.
//
//   found_at("hf:Wan-AI/Wan2.1-T2V-1.3B/vae");   // ~/.cache/huggingface/hub/models--Wan-AI--Wan2.1-T2V-1.3B/snapshots/.../vae
//   hub_name("Wan-AI/Wan2.1-T2V-1.3B")->repository;

struct HubName {
  std::string repository;  ///< "Wan-AI/Wan2.1-T2V-1.3B"
  std::string inside;      ///< a file or folder of it; empty: all of it
  bool marked = false;     ///< written with "hf:": it can be nothing else
};

/// What "hf:ORG/NAME", "ORG/NAME" and either with "/FILE" behind it name; nothing for other texts. A path of two folders
/// looks the same: where it exists, it is meant.
std::optional<HubName> hub_name(const std::string& text);

/// The folder of the cache: HF_HUB_CACHE, else HF_HOME/hub, else huggingface/hub in XDG_CACHE_HOME or ~/.cache.
Path hub_cache();

/// The path that a recipe's text means: itself where it exists; else the snapshot of the revision that refs/main names in
/// the cache, where it is there; else the text as it was.
std::string found_at(const std::string& text);

/// The same of a path; of a folder of the cache itself (models--ORG--NAME) that snapshot.
Path snapshot_of(const Path& path);

/// "; hf download ... fetches it", the command that brings what a path or a model of the hub lacks, so that the same recipe
/// finds it: into that folder, or into the cache. Empty where nothing released has such a name.
std::string fetched_by(const std::string& text);

}  // namespace tessera::checkpoint
