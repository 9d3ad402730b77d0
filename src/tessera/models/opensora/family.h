#pragma once
// Open-Sora 2.0's row in the registry.
//
//   const std::vector<Family> rows = {opensora::family()};
#include "tessera/models/common/family.h"

namespace tessera::models::opensora {

Family family();

/// The golden cases of the MMDiT: packed latents of one size with the places of their tokens, outputs and gradients of
/// the whole batch, in the program's names or in diffusers'.
std::vector<DenoiserCase> opensora_cases();

}  // namespace tessera::models::opensora
