#pragma once
// Wan 2.1, 2.2 and S2V: config.json, the layout of the releases, and what their trainers call things.
//
//   const std::vector<Family> table = {wan()};
#include "tessera/families/family.h"

namespace tessera::families {

Family wan();

/// Where DiffSynth looks for a tokenizer that no option names.
inline constexpr const char* kDiffSynthTokenizer = "models/Wan-AI/Wan2.1-T2V-1.3B/google/umt5-xxl/spiece.model";
/// Where it keeps the encoders of all Wan models, as .safetensors, unless redirect_common_files is off.
inline constexpr const char* kDiffSynthCommon = "models/DiffSynth-Studio/Wan-Series-Converted-Safetensors";

}  // namespace tessera::families
