#pragma once
// Element types as safetensors names them, shapes, and the way from any floating type to fp32.
//
//   DType dtype = *parse_dtype("BF16");
//   byte_count({2, 3}, dtype);                       // 12, or nothing when the product overflows
//   to_f32(dtype, raw, 6, values);
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"

namespace tessera::checkpoint {

using Shape = std::vector<int64_t>;

std::string_view dtype_name(DType dtype);  ///< "F32", "BF16", "F8_E4M3", ...
std::optional<DType> parse_dtype(std::string_view name);
std::string dtype_names();  ///< all of them, by comma, for messages

/// Elements of a shape; nothing when a dimension is negative or the product overflows.
std::optional<int64_t> element_count(const Shape& shape);
std::optional<int64_t> byte_count(const Shape& shape, DType dtype);
std::string shape_text(const Shape& shape);  ///< "[13824, 5120]"

/// Converts `count` elements of a floating type (is_floating); `from` needs no alignment.
void to_f32(DType dtype, const void* from, int64_t count, float* to);

/// Whether none of `count` elements is a NaN or infinite; true of types that have neither.
bool all_finite(DType dtype, const void* from, int64_t count);

// Weights in scaled fp8, as ComfyUI and musubi have them: codes, and a scale beside each weight. WeightSet::read_f32
// gives the values, codes times scale.
//
//   for (const std::string& scale : fp8_scale_names("blocks.0.ffn.0.weight")) scale;   // blocks.0.ffn.0.scale_weight

/// What the scale of a tensor may be called; empty of what is no weight.
std::vector<std::string> fp8_scale_names(const std::string& name);

/// Whether a tensor is a scale, or says that there are some: no parameter of a model.
bool is_fp8_scale(std::string_view name);

/// Multiplies elements [first, first + count) of a weight by its scales: one for all, or one for each `row` elements.
void apply_fp8_scales(float* values, int64_t first, int64_t count, const std::vector<float>& scales, int64_t row);

}  // namespace tessera::checkpoint
