#pragma once
// The golden cases of the MMDiT: packed latents of one size with the places of their tokens, outputs and gradients of
// the whole batch, in the program's names or in diffusers'.
//
//   Family{.cases = opensora_cases()};
#include "tessera/models/common/golden_case.h"

namespace tessera::models::opensora {

std::vector<DenoiserCase> opensora_cases();

}  // namespace tessera::models::opensora
