#pragma once
// Which frozen encoders a run uses: none for what it reads from files that another program encoded, but for its samples.
//
//   if (encodes_texts(recipe)) check_text_encoders(recipe.data, job, weights);
#include <filesystem>
#include <memory>
#include <string>

#include "tessera/data/audio.h"
#include "tessera/models/encoders/clip_vision.h"
#include "tessera/models/known.h"
#include "tessera/models/named_weights.h"
#include "tessera/net/encoders.h"
#include "tessera/net/model.h"
#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// Captions or prompts; also the caption of no words, where captions are dropped and data.null_text has no file of it.
bool encodes_texts(const recipe::Recipe& recipe);
/// Clips; or samples are decoded.
bool encodes_clips(const recipe::Recipe& recipe);

/// Whether samples train with the caption of no words.
bool drops_captions(const recipe::Recipe::Diffusion& diffusion);

// What a text encoder is opened with: weights under any program's names, the instruction in front of prompts.
//
//   const NamedWeights weights = open_text_weights(*job.text, recipe.data.text_encoder_path);

/// The weights of an encoder, and what another shape in them suggests.
models::NamedWeights open_text_weights(const net::TextEncoder& encoder, const std::string& path);
std::string likely_text_cause(const std::string& name, const std::vector<int64_t>& shape);

/// data.instruction, or data.instruction_image for pictures where there is one: the text itself, or that of the file it
/// names, without a line break at its end. Throws UserError (input) for a .txt that is not there.
std::string instruction_text(const recipe::Recipe::Data& data, bool of_picture = false);

/// Most tokens that the text encoder gets for embeddings of `length` rows: more with an instruction.
int64_t longest_prompt(const recipe::Recipe::Data& data, int64_t length);

// The image tower as a recipe names it, CLIP's or SigLIP's.
//
//   auto tower = open_image_encoder(recipe, model.conditions());           // no weights yet

/// The image encoder that the recipe names or the model's width asks for; nothing for a model without, and for a run none of
/// whose samples is given a picture. Throws UserError (usage) where they do not fit each other.
std::unique_ptr<models::clip::ClipVision> open_image_encoder(const recipe::Recipe& recipe,
                                                             const net::Conditions& wanted);

// The second text encoder as a recipe names it: of models that take one vector a caption (CLIP-L beside T5), and of those
// that take the rows of what a caption has in quotes (byT5 beside Qwen2.5-VL).
//
//   job.second = open_second_encoder(recipe.data, model.conditions());               // no weights yet

/// The encoder of data.pooled_encoder or data.glyph_encoder, or of the model's width; nothing for a model without. Throws
/// UserError (usage) where they do not fit each other.
std::unique_ptr<net::TextEncoder> open_second_encoder(const recipe::Recipe::Data& data, const net::Conditions& wanted);

// The speech model that a recipe names, and what a denoiser takes of a clip's sound.
//
//   auto encoder = open_audio_encoder("wav2vec-demo");                       // or a folder of wav2vec2-large-xlsr-53
//   Tensor rows = encode_sound(*encoder, sound, 16, 80);                     // [25, 80, dim]

/// `name` is data.audio_encoder: a preset with random weights ("wav2vec-demo"), a folder or file of weights under
/// transformers' names, or a model folder that has one in it (Wan2.2-S2V-14B). Throws UserError (usage) for an unknown
/// name, (input) for files.
std::unique_ptr<net::AudioEncoder> open_audio_encoder(const std::string& name);
/// From a file or folder of weights; `config` may be empty: the config.json beside them.
std::unique_ptr<net::AudioEncoder> open_audio_weights(const models::AudioEncoderMake& make,
                                                      const std::filesystem::path& weights,
                                                      const std::filesystem::path& config);

/// Sizes of that encoder, without its weights.
net::AudioSizes audio_sizes(const std::string& name);
/// The preset of these sizes; empty: there is none.
std::string audio_preset(int64_t dim, int64_t layers);
/// Folders of released speech models, for messages.
std::string released_audio_encoder();
/// Part of the keys of cache entries that are made with it.
std::string audio_fingerprint(const std::string& name);

/// Hidden states of all layers at `count` moments, 1 / fps seconds apart from the sound's beginning on: [layers, count,
/// dim], zeros where the sound has ended.
at::Tensor encode_sound(const net::AudioEncoder& encoder, const data::Sound& sound, double fps, int64_t count);

}  // namespace tessera::job
