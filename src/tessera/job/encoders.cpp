#include "tessera/job/encoders.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/data/text/prompt_ids.h"
#include "tessera/families/frames/frame_masks.h"
#include "tessera/families/frames/given_frames.h"
#include "tessera/families/registry.h"
#include "tessera/models/common/names.h"
#include "tessera/models/registry.h"
#include "tessera/recipe/stages.h"

namespace tessera::job {

namespace {

/// Of any part of the run; a stage that does not come is told elsewhere.
template <class Has>
bool any_part(const recipe::Recipe& recipe, const Has& has) {
  for (size_t number = 0; number <= recipe.stages.size(); ++number)
    if (has(recipe.at_stage(number))) return true;
  return false;
}

}  // namespace

bool drops_captions(const recipe::Recipe::Diffusion& diffusion) {
  return diffusion.caption_dropout > 0 || diffusion.pooled_dropout > 0 || families::any_beside(diffusion.mask_types);
}

bool encodes_texts(const recipe::Recipe& recipe) {
  return any_part(recipe, [](const recipe::Recipe& part) {
    const bool null = drops_captions(part.diffusion) || part.asks_blank();
    return !part.data.texts || part.sample.every > 0 || (null && part.data.null_text.empty());
  });
}

bool encodes_clips(const recipe::Recipe& recipe) {
  return any_part(recipe, [](const recipe::Recipe& part) { return !part.data.latents || part.sample.every > 0; });
}

models::NamedWeights open_text_weights(const net::TextEncoder& encoder, const std::string& path) {
  const auto foreign = [&encoder](const std::string& name, const std::string& naming) {
    return encoder.foreign_name(name, naming);
  };
  return models::NamedWeights(path, encoder.units(), foreign, models::kTextNamings);
}

std::string likely_text_cause(const std::string&, const std::vector<int64_t>&) {
  return "does data.text_encoder name the encoder of these weights?";
}

std::string instruction_text(const recipe::Recipe::Data& data, bool of_picture) {
  of_picture = of_picture && !data.instruction_image.empty();
  const std::string& given = of_picture ? data.instruction_image : data.instruction;
  std::error_code unreadable;  // a long text is no path
  if (!given.ends_with(".txt") && !std::filesystem::is_regular_file(given, unreadable)) return given;
  check_input(std::filesystem::exists(given), of_picture ? "data.instruction_image" : "data.instruction",
              given + ": no such file", "give the instruction itself, or a text file that holds it");
  std::string text = checkpoint::read_text(given);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

int64_t longest_prompt(const recipe::Recipe::Data& data, int64_t length) {
  int64_t longest = length;
  for (const std::string& instruction : std::set{instruction_text(data), instruction_text(data, /*of_picture=*/true)})
    if (!instruction.empty() && !data.tokenizer.empty())
      longest = std::max(longest, data::PromptTokenizer(data.tokenizer, instruction, length).longest());
  return longest;
}

namespace clip = models::clip;
namespace fs = std::filesystem;

namespace {

/// A model folder's own config.json is its transformer's.
bool is_tower_config(const std::string& text) {
  return text.find("\"image_size\"") != text.npos && text.find("\"patch_size\"") != text.npos;
}

clip::Config tower_config(const fs::path& path) {
  const checkpoint::ModelPart part = checkpoint::find_part(path, "image_encoder");
  if (!part.config.empty()) {
    const std::string text = checkpoint::read_text(part.config);
    if (is_tower_config(text)) return clip::parse_config(text, part.config.string());
  }
  const auto stored = checkpoint::stored_shapes(checkpoint::open_weights(part.weights));
  const models::Identity what = models::identify(stored);
  return clip::config_of(models::official_shapes(what, stored), path.string());
}

clip::Config tower_preset(const std::string& name, const net::Conditions& wanted) {
  std::vector<std::string> known;
  for (const auto& [preset, config] : clip::presets()) {
    known.push_back(preset);
    if (preset == name || (name == "auto" && config.dim == wanted.clip_dim && config.rows() == wanted.clip_rows))
      return config;
  }
  if (name == "auto")
    throw UserError(Exit::usage, "data.image_encoder",
                    "the model takes " + std::to_string(wanted.clip_rows) + " rows of a picture of width " +
                        std::to_string(wanted.clip_dim) + ", which no preset has",
                    "give data.image_encoder_path, the encoder's weights");
  const auto near = nearest(name, known);
  throw UserError(Exit::usage, "data.image_encoder",
                  "'" + name + "' is not known" + (near.empty() ? "" : "; did you mean " + near[0] + "?"),
                  "use auto, or give data.image_encoder_path");
}

/// Whether some samples of any part of the run, of training or of prompts, begin with a picture.
bool begins_with_pictures(const recipe::Recipe& recipe) {
  const auto heads = [](const std::string& kind) {
    const families::GivenPlaces places = families::places_of(kind);
    return places.pictures && places.head;
  };
  const auto drawn = [&](const families::Weighted& kind) { return kind.weight > 0 && heads(kind.name); };
  for (size_t number = 0; number <= recipe.stages.size(); ++number) {
    const recipe::Recipe part = recipe.at_stage(number);
    const bool shared = part.diffusion.conditions.empty() && part.diffusion.image_share > 0;  // else they say it
    if (shared || std::ranges::any_of(part.diffusion.conditions, drawn) || !part.sample.images.empty() ||
        (part.sample.condition != "auto" && heads(part.sample.condition)))
      return true;
  }
  return false;
}

}  // namespace

std::unique_ptr<clip::ClipVision> open_image_encoder(const recipe::Recipe& recipe, const net::Conditions& wanted) {
  if (wanted.clip_dim == 0 || (wanted.image_with_first && !begins_with_pictures(recipe))) return nullptr;
  const std::string& path = recipe.data.image_encoder_path;
  const clip::Config config = path.empty() ? tower_preset(recipe.data.image_encoder, wanted) : tower_config(path);
  if (config.dim != wanted.clip_dim || config.rows() != wanted.clip_rows)
    throw UserError(Exit::usage, "data.image_encoder",
                    "the model takes " + std::to_string(wanted.clip_rows) + " rows of a picture of width " +
                        std::to_string(wanted.clip_dim) + ", this encoder makes " + std::to_string(config.rows()) +
                        " of width " + std::to_string(config.dim),
                    "does data.image_encoder_path belong to this model?");
  return std::make_unique<clip::ClipVision>(config);
}

namespace {

using Presets = std::vector<std::pair<std::string, int64_t>>;

/// Each with its width.
Presets glyph_presets() {
  Presets found;
  for (const std::string& preset : families::names_in(&families::Family::glyph_encoders))
    found.emplace_back(preset, models::make_text_encoder({.preset = preset})->dim());
  return found;
}

std::unique_ptr<net::TextEncoder> open_one(const char* key, std::string name, int64_t width, const Presets& presets,
                                           const std::string& takes, bool pools) {
  if (name == "auto") {
    const auto found = std::ranges::find(presets, width, &Presets::value_type::second);
    if (found == presets.end()) {
      std::vector<std::string> known;
      for (const auto& [preset, its_width] : presets) known.push_back(std::to_string(its_width) + " of " + preset);
      throw UserError(Exit::usage, key, takes + "which no preset makes",
                      "give the model the width of one: " + families::listed(known, "or"));
    }
    name = found->first;
  }
  auto encoder = models::make_text_encoder({.preset = name});
  const bool has_row = encoder->pooled_row({0}) >= 0;
  if (has_row == pools && encoder->dim() == width) return encoder;
  throw UserError(Exit::usage, key,
                  takes + "'" + name + "' makes " +
                      (has_row == pools ? (pools ? "one of " : "rows of ") + std::to_string(encoder->dim()) : "none"),
                  "auto is the encoder of the model's width");
}

}  // namespace

std::unique_ptr<net::TextEncoder> open_second_encoder(const recipe::Recipe::Data& data, const net::Conditions& wanted) {
  const auto width = [](int64_t number) { return std::to_string(number); };
  if (wanted.pooled_dim > 0)
    return open_one("data.pooled_encoder", data.pooled_encoder, wanted.pooled_dim, models::pooled_presets(),
                    "the model takes one vector of " + width(wanted.pooled_dim) + " a caption, ", /*pools=*/true);
  if (wanted.glyph_dim > 0)
    return open_one("data.glyph_encoder", data.glyph_encoder, wanted.glyph_dim, glyph_presets(),
                    "the model takes rows of " + width(wanted.glyph_dim) + " of quoted text, ", /*pools=*/false);
  if (!data.glyph_encoder_path.empty())
    throw UserError(Exit::usage, "data.glyph_encoder_path", "the model reads no quoted text", "leave it out");
  return nullptr;
}

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
