#include "tessera/models/registry.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tessera/base/check.h"
#include "tessera/models/common/config_reader.h"
#include "tessera/models/identify.h"
#include "tessera/models/text/umt5.h"
#include "tessera/models/vae/haar.h"
#include "tessera/models/wan/s2v.h"
#include "tessera/models/wan/spec.h"

namespace tessera::models {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void unknown(const std::string& key, const std::string& name, const std::vector<std::string>& known) {
  std::string list;
  for (const auto& other : known) list += (list.empty() ? "" : ", ") + other;
  const auto near = nearest(name, known);
  throw UserError(Exit::usage, key, "'" + name + "' is not known",
                  (near.empty() ? "" : "did you mean " + near[0] + "? ") + "Known: " + list);
}

template <class Config>
std::vector<std::string> names(const std::vector<std::pair<std::string, Config>>& presets) {
  std::vector<std::string> result;
  for (const auto& [name, config] : presets) result.push_back(name);
  return result;
}

template <class Config>
const Config& find(const std::vector<std::pair<std::string, Config>>& presets, const std::string& key,
                   const std::string& preset) {
  for (const auto& [name, config] : presets)
    if (name == preset) return config;
  unknown(key, preset, names(presets));
}

std::vector<std::string> wan_presets() {
  std::vector<std::string> all = names(wan::presets());
  for (const auto& [name, config] : wan::s2v_presets()) all.push_back(name);
  return all;
}

std::unique_ptr<net::Denoiser> wan_of_preset(const std::string& preset) {
  for (const auto& [name, config] : wan::s2v_presets())
    if (name == preset) return std::make_unique<wan::S2v>(config);
  for (const auto& [name, config] : wan::presets())
    if (name == preset) return std::make_unique<wan::Wan>(config);
  unknown("model.preset", preset, wan_presets());
}

std::unique_ptr<net::Denoiser> wan_of_json(const std::string& json, const std::string& file, const Shapes& weights) {
  if (wan::is_s2v_config(json) || weights.count("casual_audio_encoder.weights"))
    return std::make_unique<wan::S2v>(wan::parse_s2v_config(json, file));
  return std::make_unique<wan::Wan>(wan::parse_config(json, file, weights));
}

std::vector<Family>& families() {
  static std::vector<Family> table = {
      {"wan", wan_presets, wan_of_preset, wan_of_json},
  };
  return table;
}

std::string read_text(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  check_input(in.good(), "models.config", file.string() + ": cannot be read", "check model.config and model.path");
  return text.str();
}

/// The config.json of a model folder, official or diffusers; empty when there is none.
fs::path find_config(const std::string& path) {
  const fs::path folder = fs::is_directory(path) ? fs::path(path) : fs::path(path).parent_path();
  for (const char* place : {"config.json", "transformer/config.json"})
    if (fs::exists(folder / place)) return folder / place;
  return {};
}

bool has_config(const std::string& path) { return !find_config(path).empty(); }

fs::path config_of(const std::string& path) {
  if (has_config(path)) return find_config(path);
  if (fs::is_directory(fs::path(path) / "high_noise_model"))
    throw UserError(Exit::input, "model.path", path + " holds two experts, high_noise_model and low_noise_model",
                    "give one of them, for instance model.path = \"" + path + "/low_noise_model\"");
  check_input(fs::exists(path), "model.path", path + ": no such file or folder",
              "check the path; relative paths start at the current folder, " + fs::current_path().string());
  throw UserError(Exit::input, "model.path", path + ": there is no config.json beside the weights",
                  "add model.preset or model.config");
}

}  // namespace

namespace {

Shapes official_weights(const ModelChoice& choice) { return official_shapes(identify(choice.weights), choice.weights); }

/// "wan-i2v" is the family wan and, as fields over those of the choice, its type.
ModelChoice without_type(ModelChoice choice) {
  if (choice.family.empty()) choice.family = "wan";
  const size_t dash = choice.family.find('-');
  if (dash == std::string::npos) return choice;
  const std::string text = choice.config_text.empty() ? "{}" : choice.config_text;
  auto fields = nlohmann::ordered_json::parse(text);
  fields["model_type"] = choice.family.substr(dash + 1);
  choice.config_text = fields.dump();
  choice.family.resize(dash);
  return choice;
}

/// The sizes of a preset or a config.json; nothing when the choice names neither.
std::unique_ptr<net::Denoiser> named_model(const Family& family, const ModelChoice& choice) {
  if (choice.config.empty() && !choice.preset.empty()) return family.from_preset(choice.preset);
  if (choice.config.empty() && choice.path.empty()) return nullptr;
  // a folder of weights needs no config.json when the recipe has the sizes
  if (choice.config.empty() && !choice.config_text.empty() && !has_config(choice.path)) return nullptr;
  const fs::path file = choice.config.empty() ? config_of(choice.path) : fs::path(choice.config);
  return family.from_json(read_text(file), file.string(), official_weights(choice));
}

}  // namespace

void add_family(const Family& family) { families().push_back(family); }

std::unique_ptr<net::Denoiser> make_denoiser(const ModelChoice& given) {
  const ModelChoice choice = without_type(given);
  const std::string& wanted = choice.family;
  std::vector<std::string> known;
  for (const Family& family : families()) {
    known.push_back(family.name);
    if (family.name != wanted) continue;
    auto model = named_model(family, choice);
    if (!model && choice.config_text.empty())
      throw UserError(Exit::usage, "model", "neither preset nor path nor config is given",
                      "set model.preset, for instance to " + family.presets()[0]);
    if (choice.config_text.empty()) return model;
    const Shapes weights = official_weights(choice);
    if (!model) return family.from_json(choice.config_text, std::string(kRecipeConfig), weights);
    auto sizes = nlohmann::ordered_json::parse(model->config_json());
    sizes.merge_patch(nlohmann::ordered_json::parse(choice.config_text));
    return family.from_json(sizes.dump(), std::string(kRecipeConfig), weights);
  }
  unknown("model.family", wanted, known);
}

std::unique_ptr<net::TextEncoder> make_text_encoder(const ModelChoice& choice) {
  if (choice.config.empty() && !choice.preset.empty())
    return std::make_unique<umt5::Umt5>(find(umt5::presets(), "text encoder", choice.preset));
  const fs::path file = choice.config.empty() ? config_of(choice.path) : fs::path(choice.config);
  return std::make_unique<umt5::Umt5>(umt5::parse_config(read_text(file), file.string()));
}

std::unique_ptr<net::VideoCodec> make_codec(const std::string& name) {
  const auto colon = name.find(':');
  if (name.substr(0, colon) != "haar") unknown("data.vae", name, {"haar", "or the path of a VAE of Wan"});
  if (colon == name.npos) return std::make_unique<Haar>(48);
  int64_t channels = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + colon + 1, end, channels);
  if (error != std::errc() || stop != end)
    throw UserError(Exit::usage, "autoencoder", "'" + name + "': after the colon comes the number of channels",
                    "write haar:48");
  return std::make_unique<Haar>(channels);
}

std::vector<std::string> denoiser_presets() {
  std::vector<std::string> all;
  for (const Family& family : families())
    for (auto& name : family.presets()) all.push_back(name);
  return all;
}

std::string likely_preset(const std::string& name, const std::vector<int64_t>& shape) {
  for (const Family& family : families()) {
    for (const std::string& preset : family.presets()) {
      const auto model = family.from_preset(preset);
      for (const auto& unit : model->units())
        for (const auto& param : unit->spec().params)
          if (param.name == name && param.shape == shape) return preset;
    }
  }
  return {};
}

}  // namespace tessera::models
