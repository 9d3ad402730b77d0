#pragma once
// Sana, SANA-1.5, SANA-Sprint and SANA-Video: config.json, and what runs without weights use.
//
//   const std::vector<Family> table = {wan(), sana()};
#include "tessera/families/family.h"

namespace tessera::families {

Family sana();

}  // namespace tessera::families
