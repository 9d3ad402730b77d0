#pragma once
// The only list of a recipe's keys: name, kind, default, help.
//
//   recipe_table().at("train.lr").help;
#include "tessera/base/options.h"

namespace tessera::recipe {

const OptionTable& recipe_table();

}  // namespace tessera::recipe
