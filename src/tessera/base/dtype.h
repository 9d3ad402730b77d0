#pragma once
// Element types of values in memory, in communication and in files.
//
//   size_of(DType::bf16);                                               // 2
//   name(DType::f8_e4m3);                                               // "fp8", as recipes and plans write it
//   dtype_of("bf16", "recipe: plan.compute_dtype", kComputeTypes);
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace tessera {

enum class DType { f64, f32, f16, bf16, f8_e4m3, f8_e5m2, i64, i32, i16, i8, u8, boolean };

int64_t size_of(DType dtype);  ///< bytes of an element
std::string_view name(DType dtype);
bool is_floating(DType dtype);

/// The dtypes of products, and of parameters and gradients in communication.
inline constexpr std::array kComputeTypes = {DType::f32, DType::bf16, DType::f16};

/// The dtype of `among` that `text` names. Throws UserError (usage) naming `where` and the nearest name.
DType dtype_of(std::string_view text, std::string_view where, std::span<const DType> among);

}  // namespace tessera
