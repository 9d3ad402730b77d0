#pragma once
// The keys of recipes as a JSON schema, by which editors complete and check a recipe while it is written.
//
//   tessera list schema > recipe.schema.json     # Even Better TOML and taplo: a first line "#:schema recipe.schema.json"
#include <nlohmann/json.hpp>

namespace tessera::recipe {

/// JSON Schema, draft 7: every key with its kind, choices, range, default and help; tables have no other keys. It knows
/// no rules over several keys.
nlohmann::ordered_json recipe_schema();

}  // namespace tessera::recipe
