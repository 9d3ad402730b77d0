#include "tessera/checkpoint/fp8_scale.h"

namespace tessera::checkpoint {

std::vector<std::string> fp8_scale_names(const std::string& name) {
  constexpr std::string_view kWeight = ".weight";
  if (!name.ends_with(kWeight)) return {};
  const std::string module = name.substr(0, name.size() - kWeight.size());
  return {module + ".scale_weight", module + ".weight_scale"};
}

bool is_fp8_scale(std::string_view name) {
  for (const std::string_view ending :
       {"scale_weight", "weight_scale", "scale_input", "input_scale", "scaled_fp8", "comfy_quant"})
    if (name == ending || name.ends_with("." + std::string(ending))) return true;
  return false;
}

void apply_fp8_scales(float* values, int64_t first, int64_t count, const std::vector<float>& scales, int64_t row) {
  for (int64_t i = 0; i < count; ++i)
    values[i] *= scales[scales.size() == 1 ? 0 : static_cast<size_t>((first + i) / row)];
}

}  // namespace tessera::checkpoint
