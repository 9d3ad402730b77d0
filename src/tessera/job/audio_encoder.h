#pragma once
// The speech model that a recipe names, and what a denoiser takes of a clip's sound.
//
//   auto encoder = open_audio_encoder("wav2vec-demo");                       // or a folder of wav2vec2-large-xlsr-53
//   Tensor rows = encode_sound(*encoder, sound, 16, 80);                     // [25, 80, dim]
#include <filesystem>
#include <memory>
#include <string>

#include "tessera/data/audio.h"
#include "tessera/models/known.h"

namespace tessera::job {

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
