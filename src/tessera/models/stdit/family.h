#pragma once
// The row of Open-Sora 1.2 and 1.3 in the registry.
//
//   const std::vector<Family> rows = {stdit::family()};
#include "tessera/models/common/family.h"

namespace tessera::models::stdit {

Family family();

/// The golden cases of STDiT3, 1.2's and 1.3's: latents of one size, outputs and gradients of the whole batch.
std::vector<DenoiserCase> stdit_cases();

}  // namespace tessera::models::stdit
