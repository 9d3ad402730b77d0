#pragma once
// Wan 2.1, 2.2 and S2V: config.json, the layout of the releases, and what their trainers call things.
//
//   const std::vector<Family> table = {wan()};
#include "tessera/families/family.h"

namespace tessera::families {

Family wan();

}  // namespace tessera::families
