#pragma once
// The rows of the registry, one a family, each in a source of its own: config.json, and what runs without weights use.
// Wan's is in wan.h, with what else its programs need.
//
//   const std::vector<Family> table = {wan(), sana(), opensora(), stdit(), hunyuan()};
#include "tessera/families/family.h"

namespace tessera::families {

Family sana();
Family opensora();  ///< 2.0
Family stdit();     ///< Open-Sora 1.2 and 1.3
Family hunyuan();   ///< HunyuanVideo-1.5

}  // namespace tessera::families
