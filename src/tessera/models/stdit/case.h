#pragma once
// The golden cases of STDiT3, 1.2's and 1.3's: latents of one size, outputs and gradients of the whole batch.
//
//   Family{.cases = stdit_cases()};
#include "tessera/models/common/golden_case.h"

namespace tessera::models::stdit {

std::vector<DenoiserCase> stdit_cases();

}  // namespace tessera::models::stdit
