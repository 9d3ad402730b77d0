#include "tessera/models/foreign_config.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/json.h"
#include "tessera/models/common/weight_form.h"

namespace tessera::models {

namespace {

using Json = nlohmann::ordered_json;

/// The given config, or an empty one if it belongs to another model in the same folder.
Json relevant(const std::string& text, const WeightForm& form) {
  if (!json_or_nothing(text).is_object()) return Json::object();
  const Json json = parse_ordered_json(text, "config.json");
  const bool fits = std::ranges::any_of(form.config_marks, [&](const auto& key) { return json.contains(key); });
  return fits ? json : Json::object();
}

}  // namespace

std::string config_for(const std::string& to, const Identity& identity, const Shapes& official,
                       const std::string& given, const std::string& file) {
  if (!identity.form || !identity.form->config) return {};
  try {
    const ConfigSource source{to == "diffusers", identity, Sizes{official}, {relevant(given, *identity.form)}, file};
    return identity.form->config(source).dump(2) + "\n";
  } catch (const Json::exception& error) {
    throw UserError(Exit::input, "models.config", file + ": a field is not of its type: " + error.what(),
                    "check the file, or remove it: most sizes are in the weights");
  }
}

}  // namespace tessera::models
