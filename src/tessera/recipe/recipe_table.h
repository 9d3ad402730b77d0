#pragma once
// The keys of recipes as options: name, kind, default, help (settings.h has the rows).
//
//   recipe_table().at("train.lr").help;
#include <nlohmann/json.hpp>

#include "tessera/base/options.h"

namespace tessera::recipe {

const OptionTable& recipe_table();

/// The keys that have this name without their table, or have it in another trainer: "lr" and "learning_rate" give
/// train.lr, "steps" run.steps and sample.steps. What stands before the last dot is left out. May be empty.
std::vector<std::string> keys_named(std::string_view name);
/// "did you mean train.lr?", of keys_named or else the nearest key.
std::string key_meant(std::string_view name);

/// The keys as a JSON schema, draft 7, by which editors complete and check a recipe while it is written: kind, choices,
/// range, default and help of each; tables have no other keys. It knows no rules over several keys. In a recipe, Even
/// Better TOML and taplo take it by a first line "#:schema recipe.schema.json".
nlohmann::ordered_json recipe_schema();

}  // namespace tessera::recipe
