#pragma once
// Weights in scaled fp8, as ComfyUI and musubi have them: codes, and a scale beside each weight. WeightSet::read_f32
// gives the values, codes times scale.
//
//   for (const std::string& scale : fp8_scale_names("blocks.0.ffn.0.weight")) scale;   // blocks.0.ffn.0.scale_weight
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

/// What the scale of a tensor may be called; empty of what is no weight.
std::vector<std::string> fp8_scale_names(const std::string& name);

/// Whether a tensor is a scale, or says that there are some: no parameter of a model.
bool is_fp8_scale(std::string_view name);

/// Multiplies elements [first, first + count) of a weight by its scales: one for all, or one for each `row` elements.
void apply_fp8_scales(float* values, int64_t first, int64_t count, const std::vector<float>& scales, int64_t row);

}  // namespace tessera::checkpoint
