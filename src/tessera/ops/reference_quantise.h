#pragma once
// The formats of bf16.h, blockwise.h and fp8.h in slow plain arithmetic from their definitions, as the tests'
// reference.
//
//   EXPECT_EQ(code, reference::nearest_code(DynamicMap::with_sign().values(), x / scale));
#include <array>
#include <cstdint>

#include "tessera/ops/fp8.h"

namespace tessera::ops::reference {

/// Index of the value nearest to x, the upper one at ties (differences in fp32, as the reference implementations).
uint8_t nearest_code(const std::array<float, 256>& map, float x);

/// (-1)^sign 2^(exponent - bias) 1.mantissa, from its fields.
float fp8_value(uint8_t code, DType format);
/// The code of the nearest value, the even one at ties; values that would round beyond the largest are NaN or infinity.
uint8_t fp8_code(float x, DType format);

/// The bf16 neighbours of x towards zero and away from it; both are x if bf16 can represent it.
std::array<uint16_t, 2> bf16_neighbours(float x);

}  // namespace tessera::ops::reference
