#pragma once
// The keys of recipes as options: name, kind, default, help (settings.h has the rows).
//
//   recipe_table().at("train.lr").help;
#include "tessera/base/options.h"

namespace tessera::recipe {

const OptionTable& recipe_table();

}  // namespace tessera::recipe
