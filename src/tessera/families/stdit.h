#pragma once
// Open-Sora 1.2 and 1.3: config.json, and what runs without weights use.
//
//   const std::vector<Family> table = {wan(), sana(), opensora(), stdit()};
#include "tessera/families/family.h"

namespace tessera::families {

Family stdit();

}  // namespace tessera::families
