#pragma once
// The golden cases of Sana: latents of one size, captions with a mask, outputs and gradients of the whole batch, in
// diffusers' names.
//
//   Family{.cases = sana_cases()};
#include "tessera/models/common/golden_case.h"

namespace tessera::models::sana {

std::vector<DenoiserCase> sana_cases();

}  // namespace tessera::models::sana
