#include "tessera/job/audio_encoder.h"

#include <optional>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/checkpoint/weights.h"

namespace tessera::job {

namespace fs = std::filesystem;
using models::AudioEncoderMake;

namespace {

constexpr uint64_t kSpeechSeed = 0;  // of encoders with random weights: the same in every run, as the cache outlives it

struct AudioPreset {
  const AudioEncoderMake& make;
  std::string name;
  net::AudioSizes sizes;
};

std::vector<AudioPreset> audio_presets() {
  std::vector<AudioPreset> all;
  for (const AudioEncoderMake& make : models::audio_encoders())
    for (const auto& [name, sizes] : make.presets()) all.push_back({make, name, sizes});
  return all;
}

std::optional<AudioPreset> known_preset(const std::string& name) {
  for (const AudioPreset& preset : audio_presets())
    if (preset.name == name) return preset;
  return std::nullopt;
}

struct SpeechFiles {
  const AudioEncoderMake& make;
  fs::path weights;
};

/// Where the speech model lies: the path itself, or that part of a model folder.
SpeechFiles speech_files(const std::string& name) {
  if (fs::exists(name)) {
    const fs::path weights = checkpoint::find_part(name, "audio_encoder").weights;
    for (const AudioEncoderMake& make : models::audio_encoders())
      if (weights.filename().string().starts_with(make.name)) return {make, weights};
    return {models::audio_encoders().front(), weights};
  }
  std::string known;
  for (const AudioPreset& preset : audio_presets()) known += (known.empty() ? "" : ", ") + preset.name;
  throw UserError(Exit::usage, "data.audio_encoder", "'" + name + "' is no file, no folder and not known",
                  "give the folder of " + released_audio_encoder() + ", or one of " + known);
}

fs::path speech_config_beside(const fs::path& weights) {
  const fs::path file = (fs::is_directory(weights) ? weights : weights.parent_path()) / "config.json";
  check_input(fs::exists(file), "data.audio_encoder", weights.string() + ": there is no config.json beside the weights",
              "give the whole folder of the speech model");
  return file;
}

}  // namespace

std::string released_audio_encoder() { return models::audio_encoders().front().released; }

std::string audio_preset(int64_t dim, int64_t layers) {
  for (const AudioPreset& preset : audio_presets())
    if (preset.sizes.dim == dim && preset.sizes.layers == layers) return preset.name;
  return {};
}

std::unique_ptr<net::AudioEncoder> open_audio_weights(const AudioEncoderMake& make, const fs::path& weights,
                                                      const fs::path& config) {
  const checkpoint::WeightSet files = checkpoint::open_weights(weights);
  const auto read = [&](const std::string& name) {
    if (!files.contains(name)) return at::Tensor();
    at::Tensor value = at::empty(files.at(name).shape, at::kFloat);
    files.read_f32(name, 0, value.numel(), value.mutable_data_ptr<float>());
    return value;
  };
  const fs::path file = config.empty() ? speech_config_beside(weights) : config;
  return make.from_json(checkpoint::read_text(file), file.string(), read, weights.string());
}

std::unique_ptr<net::AudioEncoder> open_audio_encoder(const std::string& name) {
  if (const auto preset = known_preset(name)) return preset->make.from_preset(name, kSpeechSeed);
  const SpeechFiles files = speech_files(name);
  return open_audio_weights(files.make, files.weights, {});
}

net::AudioSizes audio_sizes(const std::string& name) {
  if (const auto preset = known_preset(name)) return preset->sizes;
  const SpeechFiles files = speech_files(name);
  const fs::path config = speech_config_beside(files.weights);
  return files.make.sizes(checkpoint::read_text(config), config.string());
}

std::string audio_fingerprint(const std::string& name) {
  if (known_preset(name)) return name + " seed " + std::to_string(kSpeechSeed);
  const SpeechFiles files = speech_files(name);
  return std::string(files.make.name) + " " + checkpoint::fingerprint(checkpoint::open_weights(files.weights));
}

at::Tensor encode_sound(const net::AudioEncoder& encoder, const data::Sound& sound, double fps, int64_t count) {
  check_internal(sound.rate == encoder.sizes().sample_rate, "train.sound",
                 "sound at " + std::to_string(sound.rate) + " Hz");
  const at::Tensor wave = at::empty({static_cast<int64_t>(sound.samples.size())}, at::kFloat);
  std::copy(sound.samples.begin(), sound.samples.end(), wave.mutable_data_ptr<float>());
  return encoder.rows(wave, fps, count);
}

}  // namespace tessera::job
