#pragma once
// The row of Open-Sora 1.2 and 1.3 in the registry.
//
//   const std::vector<Family> rows = {stdit::family()};
#include "tessera/models/common/family.h"

namespace tessera::models::stdit {

Family family();

}  // namespace tessera::models::stdit
