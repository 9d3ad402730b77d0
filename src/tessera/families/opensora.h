#pragma once
// Open-Sora 2.0: config.json, and what runs without weights use.
//
//   const std::vector<Family> table = {wan(), sana(), opensora()};
#include "tessera/families/family.h"

namespace tessera::families {

Family opensora();

}  // namespace tessera::families
