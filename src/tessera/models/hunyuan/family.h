#pragma once
// HunyuanVideo-1.5's row in the registry.
//
//   const std::vector<Family> rows = {hunyuan::family()};
#include "tessera/models/common/family.h"

namespace tessera::models::hunyuan {

Family family();

/// The golden cases of the denoiser: padded texts of a batch with their masks.
std::vector<DenoiserCase> hunyuan_cases();

}  // namespace tessera::models::hunyuan
