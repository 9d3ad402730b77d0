#include "tessera/job/audio_encoder.h"

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/models/audio/speech_rows.h"

namespace tessera::job {

namespace fs = std::filesystem;
using models::wav2vec::Config;
using models::wav2vec::Wav2Vec2;

namespace {

constexpr uint64_t kSpeechSeed = 0;  // of encoders with random weights: the same in every run, as the cache outlives it

const Config* known_config(const std::string& name) {
  for (const auto& [known, config] : models::wav2vec::presets())
    if (known == name) return &config;
  return nullptr;
}

/// Where the speech model lies: the path itself, or a folder of that kind in a model folder.
fs::path speech_weights(const std::string& name) {
  if (fs::is_regular_file(name)) return name;
  if (fs::is_directory(name)) {
    for (const auto& inner : fs::directory_iterator(name))
      if (inner.is_directory() && inner.path().filename().string().starts_with("wav2vec2")) return inner.path();
    return name;
  }
  std::string known;
  for (const auto& [preset, config] : models::wav2vec::presets()) known += (known.empty() ? "" : ", ") + preset;
  throw UserError(Exit::usage, "data.audio_encoder", "'" + name + "' is no file, no folder and not known",
                  "give the folder of wav2vec2-large-xlsr-53-english, or one of " + known);
}

fs::path speech_config_beside(const fs::path& weights) {
  const fs::path file = (fs::is_directory(weights) ? weights : weights.parent_path()) / "config.json";
  check_input(fs::exists(file), "data.audio_encoder", weights.string() + ": there is no config.json beside the weights",
              "give the whole folder of the speech model");
  return file;
}

Config speech_config(const fs::path& weights, const fs::path& config) {
  const fs::path file = config.empty() ? speech_config_beside(weights) : config;
  return models::wav2vec::parse_config(checkpoint::read_text(file), file.string());
}

}  // namespace

std::unique_ptr<Wav2Vec2> open_wav2vec(const fs::path& weights, const fs::path& config) {
  const checkpoint::WeightSet files = checkpoint::open_weights(weights);
  const auto read = [&](const std::string& name) {
    if (!files.contains(name)) return at::Tensor();
    at::Tensor value = at::empty(files.at(name).shape, at::kFloat);
    files.read_f32(name, 0, value.numel(), value.mutable_data_ptr<float>());
    return value;
  };
  return std::make_unique<Wav2Vec2>(speech_config(weights, config), read, weights.string());
}

std::unique_ptr<Wav2Vec2> open_audio_encoder(const std::string& name) {
  if (const Config* config = known_config(name)) return std::make_unique<Wav2Vec2>(*config, kSpeechSeed);
  return open_wav2vec(speech_weights(name), {});
}

Config audio_config(const std::string& name) {
  if (const Config* config = known_config(name)) return *config;
  return speech_config(speech_weights(name), {});
}

std::string audio_fingerprint(const std::string& name) {
  if (known_config(name)) return name + " seed " + std::to_string(kSpeechSeed);
  const checkpoint::WeightSet weights = checkpoint::open_weights(speech_weights(name));
  std::string text = "wav2vec2";
  for (const auto& file : weights.files())
    text += " " + file.path().filename().string() + ":" + std::to_string(fs::file_size(file.path()));
  return text;
}

at::Tensor encode_sound(const Wav2Vec2& encoder, const data::Sound& sound, double fps, int64_t count) {
  check_internal(sound.rate == models::wav2vec::kSampleRate, "train.sound",
                 "sound at " + std::to_string(sound.rate) + " Hz");
  const at::Tensor wave = at::empty({static_cast<int64_t>(sound.samples.size())}, at::kFloat);
  std::copy(sound.samples.begin(), sound.samples.end(), wave.mutable_data_ptr<float>());
  return models::pick_rows(models::to_rate(at::stack(encoder.hidden_states(wave))), fps, count);
}

}  // namespace tessera::job
