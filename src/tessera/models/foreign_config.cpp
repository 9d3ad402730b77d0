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

/// A number that says the same stays as it was written: transformers refuses 16.0 where it wants 16.
void keep_written(Json& made, const Json& given) {
  for (const auto& [key, value] : given.items())
    if (made.contains(key) && made[key] == value) made[key] = value;
}

}  // namespace

std::string config_for(const std::string& to, const Identity& identity, const Shapes& official,
                       const std::string& given, const std::string& file) {
  if (!identity.form || !identity.form->config) return {};
  try {
    const ConfigSource source{to == "diffusers", identity, Sizes{official}, {relevant(given, *identity.form)}, file};
    Json made = identity.form->config(source);
    keep_written(made, source.given.json);
    return made.dump(2) + "\n";
  } catch (const Json::exception& error) {
    throw UserError(Exit::input, "models.config", file + ": a field is not of its type: " + error.what(),
                    "check the file, or remove it: most sizes are in the weights");
  }
}

}  // namespace tessera::models
