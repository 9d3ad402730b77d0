#include "tessera/checkpoint/lora_settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "tessera/base/check.h"
#include "tessera/checkpoint/json.h"

namespace tessera::checkpoint {

namespace {

constexpr const char* kAdapterMetadata = "lora_adapter_metadata";  // of diffusers
constexpr const char* kAdapterConfig = "adapter_config.json";      // of peft
constexpr const char* kFoldedAlpha = "tessera_folded_alpha";

/// diffusers writes one object for all parts of a pipeline, keys with the part's name in front.
const Json* member(const Json& object, const std::string& key) {
  for (const char* prefix : {"", "transformer.", "transformer_2."})
    if (const auto it = object.find(prefix + key); it != object.end() && !it->is_null()) return &*it;
  return nullptr;
}

double number(const Json& value, const std::string& what) {
  check_input(value.is_number() && std::isfinite(value.get<double>()), "lora",
              what + ": expected a number, found " + shown(dump_json(value)));
  return value.get<double>();
}

bool flag(const Json& object, const std::string& key, const std::string& what) {
  const Json* value = member(object, key);
  if (!value) return false;
  check_input(value->is_boolean(), "lora", what + ": " + key + ": expected true or false");
  return value->get<bool>();
}

constexpr size_t kMostPatterns = 16;  // each is tried with every module
constexpr size_t kLongestModule = 1024;

/// peft reads every key as an expression; nearly all are names.
void add_alpha(const std::string& module, double alpha, const std::string& what, LoraSettings& settings) {
  const bool is_name = std::ranges::all_of(module, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '_' ||
           c == '-';
  });
  if (is_name) return void(settings.alphas.emplace(module, alpha));
  const auto pattern = BoundedRegex::parse("(.*\\.)?(" + module + ")");
  check_input(pattern.has_value(), "lora",
              what + ": alpha_pattern " + shown(module) + " is no regular expression within our bounds (" +
                  BoundedRegex::kBounds + ")",
              "name the modules there one by one");
  check_input(settings.alpha_patterns.size() < kMostPatterns, "lora",
              what + ": alpha_pattern has more than " + std::to_string(kMostPatterns) + " regular expressions",
              "name the modules there one by one");
  settings.alpha_patterns.emplace_back(*pattern, alpha);
}

std::string text_at(const Json& object, const std::string& key) {
  const Json* value = member(object, key);
  return value && value->is_string() ? value->get<std::string>() : "";
}

/// What peft calls LoRA too, and is no sum of W and s B A with the W that was released.
std::string not_plain(const Json& config) {
  constexpr std::pair<std::string_view, const char*> kResidual[] = {
      {"pissa", "PiSSA"}, {"olora", "OLoRA"}, {"corda", "CorDA"}, {"loftq", "LoftQ"}, {"lora_ga", "LoRA-GA"}};
  constexpr std::pair<const char*, const char*> kVariants[] = {{"kasa_config", "KaSA"},
                                                               {"use_bdlora", "BD-LoRA"},
                                                               {"use_qalora", "QA-LoRA"},
                                                               {"alora_invocation_tokens", "Activated LoRA"}};
  const std::string type = text_at(config, "peft_type");
  if (type == "LOHA" || type == "LOKR") return {};
  if (!type.empty() && type != "LORA") return shown(type) + " of peft, which is no LoRA";
  std::string start = text_at(config, "init_lora_weights");
  std::ranges::transform(start, start.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const auto& [begin, name] : kResidual)
    if (start.starts_with(begin))
      return std::string(name) +
             ": it was trained on a base that the start of its training changed, and gives wrong "
             "weights on the released one";
  for (const auto& [key, name] : kVariants)
    if (const Json* value = member(config, key); value && *value != Json(false))
      return std::string(name) + ", whose result is not W + s B A";
  return {};
}

void read_config(const Json& config, const std::string& what, LoraSettings& settings) {
  check_input(config.is_object(), "lora", what + ": expected an object");
  settings.not_plain = not_plain(config);
  settings.base_model = text_at(config, "base_model_name_or_path");
  if (const Json* alpha = member(config, "lora_alpha")) settings.alpha = number(*alpha, what + ": lora_alpha");
  if (const Json* patterns = member(config, "alpha_pattern"); patterns && patterns->is_object())
    for (const auto& [module, alpha] : patterns->items())
      add_alpha(module, number(alpha, what + ": alpha_pattern"), what, settings);
  settings.of_factors = text_at(config, "peft_type") == "LOHA" || text_at(config, "peft_type") == "LOKR";
  if (const Json* alpha = member(config, "alpha"); alpha && settings.of_factors)
    settings.alpha = number(*alpha, what + ": alpha");
  settings.rslora = flag(config, "use_rslora", what);
  settings.dora = flag(config, "use_dora", what);
}

std::optional<double> decimal(const Metadata& metadata, const char* key) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) return std::nullopt;
  double value = 0;
  const char* end = it->second.data() + it->second.size();
  const auto [stop, error] = std::from_chars(it->second.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;  // "Dynamic" of kohya
  return value;
}

std::string text_of(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end);
}

/// The value most modules have.
template <class Get>
auto common(const std::vector<LoraDescription::Module>& modules, const Get& get) {
  std::map<decltype(get(modules[0])), size_t> counts;
  for (const auto& module : modules) ++counts[get(module)];
  auto best = counts.begin();
  for (auto it = counts.begin(); it != counts.end(); ++it)
    if (it->second > best->second) best = it;
  return best->first;
}

template <class Get>
bool same(const std::vector<LoraDescription::Module>& modules, const Get& get) {
  return std::ranges::all_of(modules, [&](const auto& module) { return get(module) == get(modules[0]); });
}

}  // namespace

std::string target_of(const std::string& module) {
  // the layer's number is the first that is followed by a name; others ("ffn.0", "net.0.proj") are the module's
  for (size_t dot = module.find('.'); dot != module.npos; dot = module.find('.', dot + 1)) {
    const size_t next = module.find('.', dot + 1);
    if (next == module.npos) break;
    const std::string part = module.substr(dot + 1, next - dot - 1);
    if (part.find_first_not_of("0123456789") == part.npos) return module.substr(next + 1);
  }
  return module;
}

std::optional<double> LoraSettings::alpha_of(const std::string& module) const {
  // the module's whole path, or an end of it
  for (size_t at = 0; at != module.npos && module.size() <= kLongestModule; at = module.find('.', at)) {
    if (at > 0) ++at;
    if (const auto found = alphas.find(std::string_view(module).substr(at)); found != alphas.end())
      return found->second;
  }
  for (const auto& [pattern, value] : alpha_patterns)
    if (pattern.matches(module)) return value;
  return alpha;
}

LoraSettings read_lora_settings(const Metadata& metadata, const Path& folder, const std::string& file) {
  LoraSettings settings;
  std::error_code error;
  if (!folder.empty() && std::filesystem::is_regular_file(folder / kAdapterConfig, error)) {
    const std::string path = (folder / kAdapterConfig).string();
    read_config(parse_json(read_text(path), path), path, settings);
  }
  if (const auto it = metadata.find(kAdapterMetadata); it != metadata.end())
    read_config(parse_json(it->second, file + ": " + kAdapterMetadata), file + ": " + kAdapterMetadata, settings);
  if (!settings.alpha) settings.alpha = decimal(metadata, "ss_network_alpha");
  settings.folded_alpha = decimal(metadata, kFoldedAlpha);
  settings.base_lengths = metadata.contains(kBaseLengths);
  return settings;
}

double lora_scale(double alpha, int64_t rank, bool rslora) {
  return alpha / (rslora ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
}

std::string lora_config_json(const LoraDescription& description, const std::string& prefix) {
  using Module = LoraDescription::Module;
  const int64_t rank = common(description.modules, [](const Module& m) { return m.rank; });
  const double alpha = common(description.modules, [](const Module& m) { return m.alpha; });
  Json ranks = Json::object(), alphas = Json::object();
  std::set<std::string> targets;
  for (const Module& module : description.modules) {
    targets.insert(target_of(module.name));
    if (module.rank != rank) ranks[module.name] = module.rank;
    if (module.alpha != alpha) alphas[module.name] = module.alpha;
  }
  const bool of_factors = !description.kind.empty();
  const Json fields = {{"peft_type", of_factors ? (description.kind == "LoHa" ? "LOHA" : "LOKR") : "LORA"},
                       {"r", rank},
                       {of_factors ? "alpha" : "lora_alpha", alpha},
                       {"target_modules", targets},
                       {"rank_pattern", ranks},
                       {"alpha_pattern", alphas},
                       {"lora_dropout", 0.0},
                       {"bias", "none"},
                       {"lora_bias", description.bias},
                       {"use_rslora", description.rslora},
                       {"use_dora", description.dora},
                       {"inference_mode", true}};
  Json config = Json::object();
  for (const auto& [key, value] : fields.items()) config[prefix + key] = value;
  return config.dump(2);
}

Metadata lora_metadata(const LoraDescription& description, const std::string& naming, std::optional<double> folded) {
  Metadata metadata = {{"format", "pt"}};
  if (description.base_lengths) metadata[kBaseLengths] = "true";
  if (!description.kind.empty()) {  // peft's and diffusers' settings would not be true
    const auto whole = [](const LoraDescription::Module& m) { return m.rank == 0; };
    if (naming == "peft") metadata[kAdapterMetadata] = lora_config_json(description, "");
    if (naming == "kohya")
      metadata["ss_network_module"] = description.kind == "LoHa" ? "networks.loha" : "networks.lokr";
    if (std::ranges::any_of(description.modules, whole)) return metadata;
    metadata["ss_network_dim"] = std::to_string(common(description.modules, [](const auto& m) { return m.rank; }));
    metadata["ss_network_alpha"] = text_of(common(description.modules, [](const auto& m) { return m.alpha; }));
    return metadata;
  }
  if (naming == "diffusers") metadata[kAdapterMetadata] = lora_config_json(description, "transformer.");
  if (naming == "peft") metadata[kAdapterMetadata] = lora_config_json(description, "");
  // Files of other names may leave an alpha out that is the rank: they name one only where all modules have it.
  const auto rank = [](const LoraDescription::Module& m) { return m.rank; };
  const auto alpha = [](const LoraDescription::Module& m) { return m.alpha; };
  const bool each = naming == "kohya";
  if (each) metadata["ss_network_module"] = description.network;
  metadata["ss_network_dim"] =
      each || same(description.modules, rank) ? std::to_string(common(description.modules, rank)) : "Dynamic";
  metadata["ss_network_alpha"] =
      each || same(description.modules, alpha) ? text_of(common(description.modules, alpha)) : "Dynamic";
  if (folded) metadata[kFoldedAlpha] = text_of(*folded);
  return metadata;
}

Metadata lora_origin(const Metadata& header) {
  Metadata origin;
  for (const auto& [key, value] : header)
    if ((key.starts_with("ss_") && !key.starts_with("ss_network_")) ||
        (key.starts_with("modelspec.") && !key.starts_with("modelspec.hash")))
      origin[key] = value;
  return origin;
}

}  // namespace tessera::checkpoint
