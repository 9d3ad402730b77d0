#include "tessera/models/lora_names.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <set>

#include "tessera/families/lora_namings.h"
#include "tessera/models/known.h"

namespace tessera::models {

namespace {

constexpr std::string_view kWeight = ".weight";

/// Prefixes of the programs that wrote a file, and of wrappers; the first that begins a name decides.
constexpr std::pair<std::string_view, std::string_view> kPrefixes[] = {{"lora_unet__", "kohya"},
                                                                       {"lora_unet_", "kohya"},
                                                                       {"lora_transformer_", "kohya"},
                                                                       {"lycoris_", "kohya"},
                                                                       {"diffusion_model.", "comfyui"},
                                                                       {"base_model.model.", "peft"},
                                                                       {"transformer.base_model.model.", "diffusers"},
                                                                       {"transformer.", "diffusers"},
                                                                       {"transformer_2.", "diffusers"},
                                                                       {"pipe.dit.", "diffsynth"},
                                                                       {"pipe.dit2.", "diffsynth"}};

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

std::optional<Ending> ending_of(std::string_view name) {
  for (const Ending& ending : kEndings)
    if (name.ends_with(ending.text)) return ending;
  for (size_t i = 0; i < std::size(kFactorEndings); ++i)
    if (name.ends_with(kFactorEndings[i]))
      return Ending{kFactorEndings[i], static_cast<LoraPart>(static_cast<size_t>(kFirstFactor) + i)};
  return std::nullopt;
}

/// Of every family.
std::vector<const WeightForm*> denoiser_forms() {
  std::vector<const WeightForm*> forms;
  for (const Family& family : families())
    for (const WeightForm& form : family.weights) forms.push_back(&form);
  return forms;
}

std::string without_weight(std::string name) {
  if (name.ends_with(kWeight)) name.resize(name.size() - kWeight.size());
  return name;
}

std::string flat(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

/// Unchanged where the other program holds the module's rows in another order or beside other ones: an adapter of ours
/// would not fit there.
std::string translated(const WeightForm& form, const std::string& module,
                       std::string (*translate)(const KeyMap&, std::string_view)) {
  const std::string name = translate(form.names.diffusers, module + std::string(kWeight));
  return checkpoint::row_part(name) ? module : without_weight(name);
}

/// Flat names -> dotted official ones, for the official and the diffusers name of every module in a model's tables.
struct FlatModules {
  std::deque<std::pair<std::string, std::string>> texts;  // storage of the patterns, which are views
  std::vector<NamePattern> patterns;

  explicit FlatModules(const WeightForm& form) {
    for (const auto& names : form.names.diffusers)
      for (auto [ours, theirs] : names) {
        if (!ours.ends_with('*') || !theirs.ends_with('*')) continue;  // a tensor, not a module
        if (ours.ends_with(".*") && theirs.ends_with(".*")) ours.remove_suffix(2), theirs.remove_suffix(2);
        add(ours, ours), add(theirs, ours);
      }
    for (const std::string& module : form.same_modules) add(module, module);
  }
  void add(std::string_view stored, std::string_view official) {
    const auto& [from, to] = texts.emplace_back(flat(std::string(stored)), official);
    patterns.push_back({from, to});
  }
  std::optional<std::string> official(const std::string& stored) const {
    for (const NamePattern& row : patterns)
      if (matches(row.ours, stored)) return rename({row}, stored);
    return std::nullopt;
  }
};

const FlatModules& flat_modules(const WeightForm& form) {
  static std::mutex one_at_a_time;
  static std::map<const WeightForm*, FlatModules> known;
  const std::lock_guard lock(one_at_a_time);
  return known.try_emplace(&form, form).first->second;
}

/// The official name of a module of this model as stored, without its prefix; nothing where it has no such module.
std::optional<std::string> known_module(const WeightForm& form, const std::string& stored, bool flat_name) {
  if (flat_name) return flat_modules(form).official(stored);
  const std::string tensor = stored + std::string(kWeight);
  for (const auto& names : form.names.diffusers)
    for (const auto& [ours, theirs] : names)
      if (matches(ours, tensor) || matches(theirs, tensor)) return translated(form, stored, to_official);
  for (const std::string& module : form.same_modules)
    if (matches(module, stored)) return stored;
  return std::nullopt;
}

/// Modules of a file as stored, without prefix and ending.
std::set<std::string> stored_modules(const std::vector<std::string>& stored, const std::string& prefix) {
  std::set<std::string> modules;
  for (const std::string_view name : stored)
    if (const auto ending = ending_of(name); ending && name.starts_with(prefix) && name.size() > prefix.size())
      modules.emplace(name.substr(prefix.size(), name.size() - prefix.size() - ending->text.size()));
  return modules;
}

/// The model that has most of the modules: one for the whole file, as some names are modules of several models.
void find_form(const std::set<std::string>& modules, const WeightForm* base, LoraNames& names) {
  const bool flat_names = names.naming == "kohya";
  const auto known = [&](const WeightForm* form) {
    return std::ranges::count_if(modules, [&](const std::string& m) {
      return known_module(*form, m, flat_names) || (!flat_names && !lora_pieces(form, m).empty());
    });
  };
  if (base && known(base) > 0) return void(names.form = base);
  int64_t most = 0;
  std::vector<const WeightForm*> best;
  for (const WeightForm* form : denoiser_forms()) {
    const int64_t found = known(form);
    if (found > most) best.clear();
    most = std::max(most, found);
    if (found == most && found > 0) best.push_back(form);
  }
  if (best.empty()) return;
  names.form = best.front();
  const auto differs = [&](const WeightForm* form, const std::string& module) {
    const auto ours = known_module(*best.front(), module, flat_names), theirs = known_module(*form, module, flat_names);
    return ours != theirs ||
           (ours && translated(*best.front(), *ours, to_foreign) != translated(*form, *ours, to_foreign));
  };
  std::set<std::string> titles = {best.front()->title};
  for (const WeightForm* form : best)
    if (std::ranges::any_of(modules, [&](const std::string& m) { return differs(form, m); }))
      titles.insert(form->title + (form->variant.empty() ? "" : " " + form->variant));
  for (const std::string& title : titles)
    if (titles.size() > 1) names.rivals += (names.rivals.empty() ? "" : ", ") + title;
}

}  // namespace

bool is_adapter_tensor(std::string_view stored) {
  const auto ending = ending_of(stored);
  if (!ending) return false;
  // differences alone, as LyCORIS' "full" writes them: known by the prefix, as other files may have such names
  const bool difference = ending->part == LoraPart::diff || ending->part == LoraPart::diff_bias;
  if (difference) return std::ranges::any_of(kPrefixes, [&](const auto& row) { return stored.starts_with(row.first); });
  return ending->part == LoraPart::down || ending->part == LoraPart::up || ending->part >= kFirstFactor;
}

std::optional<LoraNames> detect_lora_names(const std::vector<std::string>& stored, const WeightForm* base) {
  const auto first =
      std::find_if(stored.begin(), stored.end(), [](const auto& name) { return is_adapter_tensor(name); });
  if (first == stored.end()) return std::nullopt;
  const bool is_default = first->find(".default.") != first->npos;
  LoraNames names{.naming = is_default ? "diffsynth" : "peft", .prefix = ""};
  for (const auto& [prefix, naming] : kPrefixes)
    if (first->starts_with(prefix)) {
      names = {.naming = std::string(naming), .prefix = std::string(prefix)};
      break;
    }
  find_form(stored_modules(stored, names.prefix), base, names);
  return names;
}

std::optional<LoraKey> LoraNames::parse(std::string_view stored) const {
  const auto ending = ending_of(stored);
  if (!ending || !stored.starts_with(prefix) || stored.size() < prefix.size() + ending->text.size())
    return std::nullopt;
  stored.remove_prefix(prefix.size());
  stored.remove_suffix(ending->text.size());
  const std::string name(stored);
  const bool flat_name = naming == "kohya";
  auto module = form ? known_module(*form, name, flat_name) : std::nullopt;
  if (!module && !flat_name) module = name;
  if (!module || module->empty()) return std::nullopt;
  return LoraKey{*module, ending->part};
}

std::vector<LoraPiece> lora_pieces(const WeightForm* form, const std::string& module) {
  std::vector<LoraPiece> pieces;
  if (!form) return pieces;
  for (const KeyMap* map : {&form->names.diffusers, &form->names.official}) {
    for (const std::string& stored : row_parts(*map, module + std::string(kWeight))) {
      const auto rows = *checkpoint::row_part(stored);
      if (rows.columns || rows.pairs > 0) return {};  // its rows stand in another order there
      pieces.push_back({without_weight(to_official(*map, stored)), rows});
    }
    if (!pieces.empty()) break;
  }
  return pieces;
}

std::string family_with(const WeightForm* form) {
  for (const Family& family : families())
    for (const WeightForm& one : family.weights)
      if (&one == form) return family.name;
  return {};
}

std::string lora_module_name(const std::string& module, const std::string& naming, const WeightForm* form) {
  const families::LoraForm* file = families::lora_form(naming);
  const bool diffusers =
      form && families::lora_route(family_with(form), naming).modules == families::LoraModules::diffusers;
  const std::string name = diffusers ? translated(*form, module, to_foreign) : module;
  return file && file->flat ? flat(name) : name;
}

std::optional<std::string> lora_tensor_name(const std::string& module, LoraPart part, const std::string& naming,
                                            const WeightForm* form) {
  const families::LoraForm* file = families::lora_form(naming);
  if (!file) return std::nullopt;
  const std::string stored = std::string(file->prefix) + lora_module_name(module, naming, form);
  if (part >= kFirstFactor)
    return stored + std::string(kFactorEndings[static_cast<size_t>(part) - static_cast<size_t>(kFirstFactor)]);
  const std::string_view endings[] = {file->down,      file->up,   file->up_bias,  file->alpha,
                                      file->magnitude, file->diff, file->diff_bias};
  const std::string_view ending = endings[static_cast<size_t>(part)];
  if (ending.empty()) return std::nullopt;
  return stored + std::string(ending);
}

std::string alpha_name(const std::string& module, const std::string& naming, const WeightForm* form) {
  const families::LoraForm* file = families::lora_form(naming);
  return std::string(file ? file->prefix : "") + lora_module_name(module, naming, form) + ".alpha";
}

}  // namespace tessera::models
