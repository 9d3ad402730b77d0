#pragma once
// The speech model that a recipe names, and what a denoiser takes of a clip's sound.
//
//   auto encoder = open_audio_encoder("wav2vec-demo");                       // or a folder of wav2vec2-large-xlsr-53
//   Tensor rows = encode_sound(*encoder, sound, 16, 80);                     // [25, 80, dim]
#include <filesystem>
#include <memory>
#include <string>

#include "tessera/data/audio.h"
#include "tessera/models/audio/wav2vec2.h"

namespace tessera::job {

/// `name` is data.audio_encoder: a preset with random weights ("wav2vec-demo"), a folder or file of weights under
/// transformers' names, or a model folder that has one in it (Wan2.2-S2V-14B). Throws UserError (usage) for an unknown
/// name, (input) for files.
std::unique_ptr<models::wav2vec::Wav2Vec2> open_audio_encoder(const std::string& name);
/// From a file or folder of weights; `config` may be empty: the config.json beside them.
std::unique_ptr<models::wav2vec::Wav2Vec2> open_wav2vec(const std::filesystem::path& weights,
                                                        const std::filesystem::path& config);

/// Sizes of that encoder, without its weights.
models::wav2vec::Config audio_config(const std::string& name);
/// What cache entries made with it are told apart by.
std::string audio_fingerprint(const std::string& name);

/// Hidden states of all layers at `count` moments, 1 / fps seconds apart from the sound's beginning on: [layers, count,
/// dim], zeros where the sound has ended.
at::Tensor encode_sound(const models::wav2vec::Wav2Vec2& encoder, const data::Sound& sound, double fps, int64_t count);

}  // namespace tessera::job
