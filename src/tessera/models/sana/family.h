#pragma once
// Sana's row in the registry of families.
//
//   const Family row = sana::family();
#include "tessera/models/common/family.h"

namespace tessera::models::sana {

Family family();

}  // namespace tessera::models::sana
