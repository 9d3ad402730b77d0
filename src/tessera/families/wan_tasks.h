#pragma once
// The released Wan models by the names of their tasks.
//
//   for (const WanTask& task : wan_tasks()) task.two_experts;       // "t2v-A14B": true
#include <cstdint>
#include <span>

namespace tessera::families {

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
