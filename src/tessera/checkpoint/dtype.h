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

}  // namespace tessera::checkpoint
