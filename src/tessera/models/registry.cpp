#include "tessera/models/registry.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/json.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/families/registry.h"
#include "tessera/models/common/config_reader.h"
#include "tessera/models/common/names.h"
#include "tessera/models/known.h"
#include "tessera/models/lora_names.h"

namespace tessera::models {

namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& file) {
  constexpr int64_t kMost = int64_t{16} << 20;
  return read_foreign(file, kMost, "models.config", "check model.config and model.path");
}

/// The config.json of a model folder, official or diffusers; empty when there is none.
fs::path find_config(const std::string& path) {
  std::error_code unseen;
  if (!fs::exists(path, unseen)) {
    const fs::path beside = fs::path(path).parent_path() / "config.json";
    return fs::exists(beside, unseen) ? beside : fs::path();
  }
  const checkpoint::ModelFolder folder = checkpoint::find_parts(path);
  if (folder.find("transformer_2")) return {};
  const checkpoint::ModelPart* part = folder.find("transformer");
  return (part ? part : &folder.parts.front())->config;
}

bool has_config(const std::string& path) { return !find_config(path).empty(); }

/// `likely`: the preset of the weights there, for messages; empty where they are of none.
fs::path config_of(const std::string& path, const std::string& likely) {
  if (has_config(path)) return find_config(path);
  const bool there = fs::exists(path);
  if (const auto folder = there ? checkpoint::find_parts(path) : checkpoint::ModelFolder{};
      folder.find("transformer_2"))
    throw UserError(Exit::input, "model.path",
                    path + " holds two experts, " + folder.parts[0].weights.filename().string() + " and " +
                        folder.parts[1].weights.filename().string(),
                    "give one of them, for instance model.path = \"" + folder.parts[1].weights.string() + "\"");
  check_input(there, "model.path", path + ": no such file or folder",
              "check the path; relative paths start at the current folder, " + fs::current_path().string() +
                  checkpoint::fetched_by(path));
  throw UserError(Exit::input, "model.path", path + ": there is no config.json beside the weights",
                  likely.empty() ? "add model.preset (tessera list presets) or model.config"
                                 : "by its tensors it is " + likely + ": add model.preset = \"" + likely + "\"");
}

}  // namespace

const Family* family_of_config(const std::string& text) {
  const auto json = json_or_nothing(text);
  if (!json.is_object() || !json.contains("_class_name") || !json["_class_name"].is_string()) return nullptr;
  const auto name = json["_class_name"].get<std::string>();
  for (const Family& family : families())
    for (const std::string& begins : family.classes)
      if (name.starts_with(begins)) return &family;
  return nullptr;
}

namespace {

Shapes official_weights(const ModelChoice& choice) { return official_shapes(identify(choice.weights), choice.weights); }

/// By the first of these that tells it: the preset, the tensors, the config.json, the recipe's fields.
std::string found_family(const ModelChoice& choice) {
  for (const Family& family : families())
    if (const auto presets = family.presets();
        !choice.preset.empty() && std::ranges::find(presets, choice.preset) != presets.end())
      return family.name;
  if (const Identity identity = identify(choice.weights); identity.kind == ModelKind::denoiser)
    return family_of(identity).name;
  const fs::path file = !choice.config.empty() ? fs::path(choice.config)
                        : choice.path.empty()  ? fs::path()
                                               : find_config(choice.path);
  const Family* told = file.empty() ? nullptr : family_of_config(read_text(file));
  if (!told && !choice.config_text.empty()) told = family_of_config(choice.config_text);
  return told ? told->name : families::standard().name;
}

/// Splits "wan-i2v" into the family wan and its type, which overrides the fields of the choice.
ModelChoice without_type(ModelChoice choice) {
  if (choice.family.empty()) choice.family = found_family(choice);
  const size_t dash = choice.family.find('-');
  if (dash == std::string::npos) return choice;
  const std::string text = choice.config_text.empty() ? "{}" : choice.config_text;
  auto fields = parse_ordered_json(text, std::string(kRecipeConfig));
  fields["model_type"] = choice.family.substr(dash + 1);
  choice.config_text = fields.dump();
  choice.family.resize(dash);
  return choice;
}

/// Whether the tensors of a file are there for every parameter of the model, in its shapes, and no blocks besides.
bool has_shapes(const net::Denoiser& model, const Shapes& weights) {
  Shapes ours;
  for (const auto& unit : model.units())
    for (const plan::ParamSpec& param : unit->spec().params) {
      const auto found = weights.find(param.name);
      if (found == weights.end() || found->second != param.shape) return false;
      ours.insert(*found);
    }
  return count_blocks(ours) == count_blocks(weights);
}

/// The model of the presets whose shapes the weights have: a released file needs no config.json beside it. Null when
/// there is none. Throws UserError (usage) naming the presets where these differ in something that shapes do not tell.
std::unique_ptr<net::Denoiser> model_of_shapes(const Family& family, const ModelChoice& choice) {
  const Shapes weights = official_weights(choice);
  std::unique_ptr<net::Denoiser> found;
  std::string first;
  for (const std::string& preset : family.presets()) {
    auto model = family.from_preset(preset);
    if (!has_shapes(*model, weights)) continue;
    if (found && model->config_json() != found->config_json())
      throw UserError(Exit::usage, "model.path",
                      choice.path + ": there is no config.json beside the weights, which have the shapes of " + first +
                          " and of " + preset,
                      "set model.preset to the one it is");
    if (!found) found = std::move(model), first = preset;
  }
  return found;
}

/// The model of the recipe's fields alone; null where they do not suffice.
std::unique_ptr<net::Denoiser> model_of_text(const Family& family, const ModelChoice& choice) {
  if (choice.config_text.empty()) return nullptr;
  try {
    return family.from_json(choice.config_text, std::string(kRecipeConfig), official_weights(choice));
  } catch (const UserError&) {
    return nullptr;  // told where nothing else says what is missing
  }
}

/// The config.json that follows from weights without one: their shapes, and what the recipe says of it. Nothing where
/// they are of no denoiser of the family. Throws UserError (usage) naming the keys of what shapes do not tell.
std::optional<std::string> config_of_weights(const Family& family, const ModelChoice& choice) {
  const Identity identity = identify(choice.weights);
  if (identity.kind != ModelKind::denoiser || &family_of(identity) != &family || !identity.form->config) return {};
  const Shapes official = official_shapes(identity, choice.weights);
  const auto alone = model_of_text(family, choice);
  if (alone && has_shapes(*alone, official)) return {};
  const auto said = choice.config_text.empty() ? nlohmann::ordered_json::object()
                                               : parse_ordered_json(choice.config_text, std::string(kRecipeConfig));
  std::string keys;
  if (identity.form->untold)
    for (const std::string& field : identity.form->untold(official, identity))
      if (!said.contains(field)) keys += (keys.empty() ? "" : ", ") + std::string(kRecipeConfig) + "." + field;
  if (!keys.empty() && alone) return {};  // the recipe has sizes, and the loader says how these weights differ
  if (!keys.empty())
    throw UserError(Exit::usage, "model.path",
                    choice.path + ": there is no config.json beside the weights of " + identity.model +
                        ", whose shapes are those of no preset and do not tell " + keys,
                    "set them as the model was made, or put its config.json beside the weights");
  return identity.form->config({false, identity, Sizes{official}, {said}, choice.path}).dump();
}

/// The model of a preset, a config.json or known shapes; null when the choice has none of them.
std::unique_ptr<net::Denoiser> named_model(const Family& family, const ModelChoice& choice) {
  if (choice.config.empty() && !choice.preset.empty()) return family.from_preset(choice.preset);
  if (choice.config.empty() && choice.path.empty()) return nullptr;
  if (choice.config.empty() && !has_config(choice.path)) {
    if (auto model = choice.config_text.empty() ? model_of_shapes(family, choice) : nullptr) return model;
    if (const auto config = config_of_weights(family, choice))
      return family.from_json(*config, choice.path, official_weights(choice));
    if (!choice.config_text.empty()) return nullptr;  // the recipe has the sizes
  }
  const std::string model = identify(choice.weights).model;
  const std::vector<std::string> presets = family.presets();
  const std::string likely = std::ranges::find(presets, model) == presets.end() ? "" : model;
  const fs::path file = choice.config.empty() ? config_of(choice.path, likely) : fs::path(choice.config);
  return family.from_json(read_text(file), file.string(), official_weights(choice));
}

}  // namespace

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
    auto sizes = parse_ordered_json(model->config_json(), std::string(kRecipeConfig));
    sizes.merge_patch(parse_ordered_json(choice.config_text, std::string(kRecipeConfig)));
    return family.from_json(sizes.dump(), std::string(kRecipeConfig), weights);
  }
  unknown_name("model.family", wanted, known);
}

namespace {

/// The row whose config.json has one of the fields of `json`; else the first, whose reader says what is missing.
const TextEncoderMake& text_encoder_of(const std::string& json) {
  const auto fields = json_or_nothing(json);
  for (const TextEncoderMake& make : text_encoders())
    for (const std::string& mark : make.weights.config_marks)
      if (fields.is_object() && fields.contains(mark)) return make;
  return text_encoders().front();
}

}  // namespace

std::vector<std::pair<std::string, int64_t>> pooled_presets() {
  std::vector<std::pair<std::string, int64_t>> found;
  for (const TextEncoderMake& make : text_encoders())
    for (const std::string& preset : make.presets())
      if (const auto encoder = make.from_preset(preset); encoder->pooled_row({0}) >= 0)
        found.emplace_back(preset, encoder->dim());
  return found;
}

std::unique_ptr<net::TextEncoder> make_text_encoder(const ModelChoice& choice) {
  if (choice.config.empty() && !choice.preset.empty()) {
    std::vector<std::string> known;
    for (const TextEncoderMake& make : text_encoders())
      for (const std::string& preset : make.presets()) {
        if (preset == choice.preset) return make.from_preset(preset);
        known.push_back(preset);
      }
    unknown_name("text encoder", choice.preset, known);
  }
  const fs::path file = choice.config.empty() ? config_of(choice.path, "") : fs::path(choice.config);
  const std::string json = read_text(file);
  return text_encoder_of(json).from_json(json, file.string());
}

namespace {

const BuiltInCodec* built_in(const std::string& name) {
  for (const BuiltInCodec& codec : built_in_codecs())
    if (name.substr(0, name.find(':')) == codec.name) return &codec;
  return nullptr;
}

Tiling with_overlap(const AutoencoderMake& make, Tiling tiling) {
  if (tiling.overlap == Tiling::kUsual) tiling.overlap = make.usual_overlap(tiling.size);
  return tiling;
}

}  // namespace

bool is_built_in_codec(const std::string& name) { return built_in(name) != nullptr; }

std::unique_ptr<net::VideoCodec> make_codec(const std::string& name, int64_t channels) {
  const BuiltInCodec* codec = built_in(name);
  if (!codec) {
    std::vector<std::string> known;
    for (const BuiltInCodec& row : built_in_codecs()) known.push_back(row.name);
    for (const std::string& preset : autoencoder_presets()) known.push_back(preset);
    known.push_back("or the path of a VAE");
    unknown_name("data.vae", name, known);
  }
  const auto colon = name.find(':');
  if (colon == name.npos) return codec->make(channels > 0 ? channels : codec->channels);
  int64_t given = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + colon + 1, end, given);
  if (error != std::errc() || stop != end)
    throw UserError(Exit::usage, "autoencoder", "'" + name + "': after the colon comes the number of channels",
                    "write " + codec->name + ":" + std::to_string(codec->channels));
  return codec->make(given);
}

std::vector<std::string> autoencoder_presets() {
  std::vector<std::string> all;
  for (const AutoencoderMake& make : autoencoders())
    for (const AutoencoderPreset& preset : make.presets) all.push_back(preset.name);
  return all;
}

std::unique_ptr<VideoVae> make_preset_vae(const std::string& name, const Tiling& tiling) {
  for (const AutoencoderMake& make : autoencoders())
    for (const AutoencoderPreset& preset : make.presets)
      if (preset.name == name) return preset.make(with_overlap(make, tiling));
  return nullptr;
}

std::unique_ptr<VideoVae> make_vae(const std::string& config, const std::string& config_file,
                                   const WeightSource& weights, const Tiling& tiling) {
  Shapes shapes;
  for (const std::string& name : weights.names) shapes[name] = weights.shape(name);
  const WeightForm* form = identify(shapes).form;
  const AutoencoderMake* chosen = &autoencoders().front();
  for (const AutoencoderMake& make : autoencoders())
    for (const WeightForm& known : make.weights)
      if (&known == form) chosen = &make;
  return chosen->make(config, config_file, weights, with_overlap(*chosen, tiling));
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

namespace {

std::string naming_of(const std::string& naming, const std::string& prefix) {
  if (naming != "official" || prefix.empty()) return naming;
  if (prefix == "pipe.dit.") return "diffsynth";
  return prefix.ends_with("diffusion_model.") ? "comfyui" : "official";
}

std::optional<Identity> lora_identity(const Shapes& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, shape] : tensors) names.push_back(name);
  const auto lora = detect_lora_names(names);
  if (!lora) return std::nullopt;
  Identity result;
  result.kind = ModelKind::lora;
  result.model = "lora";
  result.naming = lora->naming;
  result.prefix = lora->prefix;
  return result;
}

}  // namespace

Identity identify(const Shapes& tensors) {
  if (const auto lora = lora_identity(tensors)) return *lora;
  for (const WeightForm* form : weight_forms()) {
    const KeyMap ours;
    for (const auto& [naming, map] : {std::pair("official", &form->names.official),
                                      {"diffusers", &form->names.diffusers},
                                      {"fused", &form->names.fused},
                                      {"tessera", &ours}}) {
      if (naming == std::string_view("fused") && map->empty()) continue;
      for (const std::string& prefix : kOptionalPrefixes) {
        const bool found = std::all_of(form->marks.begin(), form->marks.end(), [&](const std::string& mark) {
          const std::string theirs = to_foreign(*map, mark);
          const auto tensor = tensors.find(prefix + checkpoint::whole_name(theirs));
          const bool first = form->mark_dims > 0 && &mark == &form->marks.front();
          return tensor != tensors.end() && (!first || tensor->second.size() == form->mark_dims);
        });
        if (!found) continue;
        Identity result{form->kind, form->model, form->variant, "", prefix, &form->names, form};
        result.naming = naming_of(naming, prefix);
        if (result.naming == "official" && form->names.ours_are_diffusers) result.naming = "diffusers";
        if (form->refine) form->refine(official_shapes(result, tensors), result);
        return result;
      }
    }
  }
  return {};
}

const Family& family_of(const Identity& identity) {
  for (const Family& family : families())
    for (const WeightForm& form : family.weights)
      if (&form == identity.form) return family;
  return families().front();
}

const WeightForm* form_of(const net::Denoiser& model) {
  std::set<std::string> params;
  for (const auto& unit : model.units())
    for (const plan::ParamSpec& param : unit->spec().params) params.insert(param.name);
  for (const Family& family : families())
    for (const WeightForm& form : family.weights)
      if (std::ranges::all_of(form.marks, [&](const std::string& mark) { return params.contains(mark); })) return &form;
  return nullptr;
}

}  // namespace tessera::models
