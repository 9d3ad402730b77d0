#pragma once
// Sana's row in the registry of families.
//
//   const Family row = sana::family();
#include "tessera/models/common/family.h"

namespace tessera::models::sana {

Family family();

/// The golden cases of Sana: latents of one size, captions with a mask, outputs and gradients of the whole batch, in
/// diffusers' names.
std::vector<DenoiserCase> sana_cases();

}  // namespace tessera::models::sana
