#include "tessera/ops/reference_quantise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tessera::ops::reference {

uint8_t nearest_code(const std::array<float, 256>& map, float x) {
  int code = 0;
  while (code < 255 && map[code + 1] <= x) ++code;
  if (code < 255 && x - map[code] >= (map[code + 1] - map[code]) * 0.5f) ++code;
  return static_cast<uint8_t>(code);
}

float fp8_value(uint8_t code, DType format) {
  const int mantissa_bits = format == DType::f8_e4m3 ? 3 : 2, bias = format == DType::f8_e4m3 ? 7 : 15;
  const int magnitude = code & 0x7f, exponent = magnitude >> mantissa_bits;
  const int mantissa = magnitude & ((1 << mantissa_bits) - 1);
  float value = std::ldexp(static_cast<float>(mantissa + (exponent ? 1 << mantissa_bits : 0)),
                           std::max(exponent, 1) - bias - mantissa_bits);
  if (format == DType::f8_e4m3 && magnitude == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
  if (format == DType::f8_e5m2 && magnitude == 0x7c) value = std::numeric_limits<float>::infinity();
  if (format == DType::f8_e5m2 && magnitude > 0x7c) value = std::numeric_limits<float>::quiet_NaN();
  return code & 0x80 ? -value : value;
}

uint8_t fp8_code(float x, DType format) {
  const int top = format == DType::f8_e4m3 ? 0x7e : 0x7b;  // the largest value; the next code stands for "beyond"
  const int sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return static_cast<uint8_t>(0x7f | sign);
  const double magnitude = std::abs(static_cast<double>(x)), largest = fp8_value(static_cast<uint8_t>(top), format);
  int nearest = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int code = 0; code <= top + 1; ++code) {
    // "Beyond" is one step of the largest value's exponent above it.
    const double step = largest - fp8_value(static_cast<uint8_t>(top - 1), format);
    const double value = code <= top ? fp8_value(static_cast<uint8_t>(code), format) : largest + step;
    const double distance = std::abs(magnitude - value);
    if (distance < least || (distance == least && code % 2 == 0)) nearest = code, least = distance;
  }
  // Far above, the differences round to the same number.
  if (magnitude > 2 * largest) nearest = top + 1;
  return static_cast<uint8_t>(nearest | sign);
}

std::array<uint16_t, 2> bf16_neighbours(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const auto inner = static_cast<uint16_t>(bits >> 16);
  return {inner, static_cast<uint16_t>(inner + (bits & 0xffff ? 1 : 0))};
}

}  // namespace tessera::ops::reference
