#pragma once
// Wan 2.1, 2.2 and S2V: config.json, the layout of the releases, and what their trainers call things.
//
//   const std::vector<Family> table = {wan()};
#include <cstdint>
#include <span>

#include "tessera/families/family.h"

namespace tessera::families {

Family wan();

/// Where DiffSynth looks for a tokenizer that no option names.
inline constexpr const char* kDiffSynthTokenizer = "models/Wan-AI/Wan2.1-T2V-1.3B/google/umt5-xxl/spiece.model";
/// Where it keeps the encoders of all Wan models, as .safetensors, unless redirect_common_files is off.
inline constexpr const char* kDiffSynthCommon = "models/DiffSynth-Studio/Wan-Series-Converted-Safetensors";

// The released Wan models by the names of their tasks.
//
//   for (const WanTask& task : wan_tasks()) task.two_experts;       // "t2v-A14B": true

inline constexpr const char* kWan21Vae = "Wan2.1_VAE.pth";
inline constexpr const char* kWan22Vae = "Wan2.2_VAE.pth";

struct WanTask {
  const char* name;             ///< "t2v-A14B"
  const char* preset;           ///< model.preset of its size
  const char* type;             ///< model_type of its config.json
  bool two_experts;             ///< of its release; a folder of a task with one may hold two, and both are trained
  const char* vae;              ///< file of the official release
  int64_t frames, steps;        ///< of a sample
  double fps, shift, guidance;  ///< of a sample; two experts: the low-noise one's guidance
  int64_t width, height;        ///< of a sample where nothing is said
};

std::span<const WanTask> wan_tasks();

}  // namespace tessera::families
