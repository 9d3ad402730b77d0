#pragma once
// The family's row of the registry: presets, what a config.json is of, files, golden cases.
//
//   std::unique_ptr<net::Denoiser> model = wan::family().from_preset("wan2.1-t2v-1.3b");
#include "tessera/models/common/family.h"

namespace tessera::models::wan {

Family family();

}  // namespace tessera::models::wan
