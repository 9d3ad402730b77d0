#pragma once
// Open-Sora 2.0's row in the registry.
//
//   const std::vector<Family> rows = {opensora::family()};
#include "tessera/models/common/family.h"

namespace tessera::models::opensora {

Family family();

}  // namespace tessera::models::opensora
