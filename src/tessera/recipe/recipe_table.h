#pragma once
// The keys of recipes as options: name, kind, default, help (settings.h has the rows).
//
//   recipe_table().at("train.lr").help;
#include "tessera/base/options.h"

namespace tessera::recipe {

const OptionTable& recipe_table();

/// The keys that have this name without their table, or have it in another trainer: "lr" and "learning_rate" give
/// train.lr, "steps" run.steps and sample.steps. What stands before the last dot is left out. May be empty.
std::vector<std::string> keys_named(std::string_view name);
/// "did you mean train.lr?", of keys_named or else the nearest key.
std::string key_meant(std::string_view name);

}  // namespace tessera::recipe
