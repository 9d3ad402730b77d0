#include "tessera/models/lora_names.h"

#include <algorithm>

#include "tessera/checkpoint/row_part.h"
#include "tessera/families/registry.h"
#include "tessera/models/known.h"

namespace tessera::models {

namespace {

/// How a part ends the name of its tensor. The first that ends a name decides.
struct Ending {
  std::string_view text;
  LoraPart part;
};
constexpr Ending kEndings[] = {
    {".lora_A.weight", LoraPart::down},
    {".lora_B.weight", LoraPart::up},
    {".lora_A.default.weight", LoraPart::down},
    {".lora_B.default.weight", LoraPart::up},
    {".lora_down.weight", LoraPart::down},
    {".lora_up.weight", LoraPart::up},
    {".lora.down.weight", LoraPart::down},  // diffusers before 0.20
    {".lora.up.weight", LoraPart::up},
    {".lora_B.bias", LoraPart::up_bias},
    {".lora_B.default.bias", LoraPart::up_bias},
    {".lora_up.bias", LoraPart::up_bias},
    {".alpha", LoraPart::alpha},
    {".lora_magnitude_vector", LoraPart::magnitude},
    {".lora_magnitude_vector.weight", LoraPart::magnitude},
    {".lora_magnitude_vector.default.weight", LoraPart::magnitude},
    {".dora_scale", LoraPart::magnitude},
    {".diff", LoraPart::diff},
    {".diff_b", LoraPart::diff_bias},
};

const Ending* ending_of(std::string_view name) {
  for (const Ending& ending : kEndings)
    if (name.ends_with(ending.text)) return &ending;
  return nullptr;
}

/// A naming as it is written: endings of A, B, B's bias and the magnitude; empty: it has no such thing.
struct Form {
  std::string_view naming, prefix;
  bool flat, diffusers;  ///< '_' for '.' in modules; modules under diffusers' names
  std::string_view down, up, up_bias, alpha, magnitude, diff, diff_bias;
};
constexpr Form kForms[] = {
    {"diffusers", "transformer.", false, true, ".lora_A.weight", ".lora_B.weight", ".lora_B.bias", "",
     ".lora_magnitude_vector", "", ""},
    {"comfyui", "diffusion_model.", false, false, ".lora_A.weight", ".lora_B.weight", "", ".alpha", ".dora_scale",
     ".diff", ".diff_b"},
    {"kohya", "lora_unet_", true, false, ".lora_down.weight", ".lora_up.weight", "", ".alpha", ".dora_scale", "", ""},
    {"diffsynth", "", false, false, ".lora_A.default.weight", ".lora_B.default.weight", "", ".alpha", "", "", ""},
    {"peft", "base_model.model.", false, false, ".lora_A.weight", ".lora_B.weight", ".lora_B.bias", "",
     ".lora_magnitude_vector", "", ""},
};

const Form* form_of(std::string_view naming) {
  for (const Form& form : kForms)
    if (form.naming == naming) return &form;
  return nullptr;
}

/// Of every family of denoisers.
std::vector<const WeightForm*> denoiser_forms() {
  std::vector<const WeightForm*> forms;
  for (const Family& family : families())
    for (const WeightForm& form : family.weights) forms.push_back(&form);
  return forms;
}

/// The name by the first family whose table changes it; unchanged if none does, or where the other program holds the
/// module's rows in another order or beside other ones: an adapter of ours would not fit there.
std::string translated(const std::string& tensor, std::string (*translate)(const KeyMap&, std::string_view)) {
  for (const WeightForm* form : denoiser_forms())
    if (std::string name = translate(form->names.diffusers, tensor); name != tensor)
      return checkpoint::row_part(name) ? tensor : name;
  return tensor;
}

std::string without_weight(std::string name) {
  constexpr std::string_view kWeight = ".weight";
  if (name.ends_with(kWeight)) name.resize(name.size() - kWeight.size());
  return name;
}

std::string flat(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

/// Flat names -> dotted official ones, for the official and the diffusers name of every module in the tables.
struct FlatModules {
  std::vector<std::pair<std::string, std::string>> texts;  // storage of the patterns, which are views
  std::vector<NamePattern> patterns;

  FlatModules() {
    constexpr std::string_view kRest = ".*";  // a row without it is a tensor, not a module
    for (const WeightForm* form : denoiser_forms()) {
      for (const auto& names : form->names.diffusers)
        for (auto [ours, theirs] : names) {
          if (!ours.ends_with(kRest) || !theirs.ends_with(kRest)) continue;
          ours.remove_suffix(kRest.size()), theirs.remove_suffix(kRest.size());
          texts.emplace_back(flat(std::string(ours)), ours);
          texts.emplace_back(flat(std::string(theirs)), ours);
        }
      for (const std::string& module : form->same_modules) texts.emplace_back(flat(module), module);
    }
    for (const auto& [stored, official] : texts) patterns.push_back({stored, official});
  }
};

/// The official name of a module as stored, without its prefix.
std::optional<std::string> official_module(const std::string& stored, bool flat_name) {
  if (!flat_name) return without_weight(translated(stored + ".weight", to_official));
  static const FlatModules known;
  const std::string found = rename(known.patterns, stored);
  if (found == stored && std::ranges::find(known.texts, std::pair(stored, stored)) == known.texts.end())
    return std::nullopt;
  return found;
}

}  // namespace

std::string_view foreign_adapter_kind(std::string_view stored) {
  if (stored.find(".lokr_") != stored.npos) return "LoKr";
  if (stored.find(".hada_w") != stored.npos) return "LoHa";
  return {};
}

bool is_adapter_tensor(std::string_view stored) {
  if (!foreign_adapter_kind(stored).empty()) return true;
  const Ending* ending = ending_of(stored);
  return ending && (ending->part == LoraPart::down || ending->part == LoraPart::up);
}

std::optional<LoraNames> detect_lora_names(const std::vector<std::string>& stored) {
  const auto first =
      std::find_if(stored.begin(), stored.end(), [](const auto& name) { return is_adapter_tensor(name); });
  if (first == stored.end()) return std::nullopt;
  const bool is_default = first->find(".default.") != first->npos;
  // prefixes of the programs that wrote the file, and of wrappers
  constexpr std::pair<std::string_view, std::string_view> kPrefixes[] = {
      {"lora_unet_", "kohya"},       {"lora_transformer_", "kohya"}, {"diffusion_model.", "comfyui"},
      {"base_model.model.", "peft"}, {"transformer.", "diffusers"},  {"transformer_2.", "diffusers"},
      {"pipe.dit.", "diffsynth"},    {"pipe.dit2.", "diffsynth"}};
  for (const auto& [prefix, naming] : kPrefixes)
    if (first->starts_with(prefix)) return LoraNames{std::string(naming), std::string(prefix)};
  return LoraNames{is_default ? "diffsynth" : "peft", ""};
}

std::optional<LoraKey> LoraNames::parse(std::string_view stored) const {
  const Ending* ending = ending_of(stored);
  if (!ending || !stored.starts_with(prefix)) return std::nullopt;
  stored.remove_prefix(prefix.size());
  stored.remove_suffix(ending->text.size());
  const auto module = official_module(std::string(stored), naming == "kohya");
  if (!module || module->empty()) return std::nullopt;
  return LoraKey{*module, ending->part};
}

std::string lora_network(const std::string& module) {
  const std::string tensor = module + ".weight";
  for (const Family& family : families())
    for (const WeightForm& form : family.weights)
      if (to_foreign(form.names.diffusers, tensor) != tensor) return families::of(family.name).lora_network;
  return families::standard().lora_network;
}

std::string lora_module_name(const std::string& module, const std::string& naming) {
  const Form* form = form_of(naming);
  if (form && form->flat) return flat(module);
  return form && form->diffusers ? without_weight(translated(module + ".weight", to_foreign)) : module;
}

std::optional<std::string> lora_tensor_name(const std::string& module, LoraPart part, const std::string& naming) {
  const Form* form = form_of(naming);
  if (!form) return std::nullopt;
  const std::string_view endings[] = {form->down,      form->up,   form->up_bias,  form->alpha,
                                      form->magnitude, form->diff, form->diff_bias};
  const std::string_view ending = endings[static_cast<size_t>(part)];
  if (ending.empty()) return std::nullopt;
  return std::string(form->prefix) + lora_module_name(module, naming) + std::string(ending);
}

}  // namespace tessera::models
