#include "tessera/checkpoint/dtype.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tessera/base/check.h"

namespace tessera::checkpoint {

static_assert(std::endian::native == std::endian::little, "safetensors is little endian, and so are all our readers");

namespace {

// in the order of DType
constexpr std::array<std::string_view, 12> kNames = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2",
                                                     "I64", "I32", "I16", "I8",   "U8",      "BOOL"};

/// The value of a small float. `ieee`: the top exponent means Inf and NaN; otherwise (E4M3 "fn") only all ones is NaN.
float decode(uint32_t bits, int exponent_bits, int mantissa_bits, bool ieee) {
  uint32_t mantissa_mask = (1u << mantissa_bits) - 1, exponent_mask = (1u << exponent_bits) - 1;
  uint32_t mantissa = bits & mantissa_mask, exponent = (bits >> mantissa_bits) & exponent_mask;
  float sign = (bits >> (exponent_bits + mantissa_bits)) & 1 ? -1.0f : 1.0f;
  if (exponent == exponent_mask) {
    if (ieee && mantissa == 0) return sign * std::numeric_limits<float>::infinity();
    if (ieee || mantissa == mantissa_mask) return std::numeric_limits<float>::quiet_NaN();
  }
  int bias = (1 << (exponent_bits - 1)) - 1;
  float fraction = static_cast<float>(exponent == 0 ? mantissa : mantissa + mantissa_mask + 1);
  return sign * std::ldexp(fraction, static_cast<int>(exponent == 0 ? 1 : exponent) - bias - mantissa_bits);
}

std::vector<float> table(int exponent_bits, int mantissa_bits, bool ieee) {
  std::vector<float> values(size_t{1} << (1 + exponent_bits + mantissa_bits));
  for (uint32_t bits = 0; bits < values.size(); ++bits) values[bits] = decode(bits, exponent_bits, mantissa_bits, ieee);
  return values;
}

template <class T, class F>
void convert(const void* from, int64_t count, float* to, F value) {
  const char* bytes = static_cast<const char*>(from);
  for (int64_t i = 0; i < count; ++i) {
    T element;
    std::memcpy(&element, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    to[i] = value(element);
  }
}

}  // namespace

std::string_view dtype_name(DType dtype) { return kNames[static_cast<size_t>(dtype)]; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<DType>(i);
  return std::nullopt;
}

std::string dtype_names() {
  std::string text;
  for (const std::string_view name : kNames) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

std::optional<int64_t> element_count(const Shape& shape) {
  int64_t count = 1;
  for (int64_t dim : shape)
    if (dim < 0 || __builtin_mul_overflow(count, dim, &count)) return std::nullopt;
  return count;
}

std::optional<int64_t> byte_count(const Shape& shape, DType dtype) {
  std::optional<int64_t> count = element_count(shape);
  int64_t bytes = 0;
  if (!count || __builtin_mul_overflow(*count, size_of(dtype), &bytes)) return std::nullopt;
  return bytes;
}

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text.append(i ? ", " : "").append(std::to_string(shape[i]));
  return text + "]";
}

void to_f32(DType dtype, const void* from, int64_t count, float* to) {
  static const std::vector<float> f16 = table(5, 10, true), e4m3 = table(4, 3, false), e5m2 = table(5, 2, true);
  switch (dtype) {
    case DType::f64:
      return convert<double>(from, count, to, [](double x) { return static_cast<float>(x); });
    case DType::f32:
      std::memmove(to, from, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::f16:
      return convert<uint16_t>(from, count, to, [](uint16_t x) { return f16[x]; });
    case DType::bf16:
      return convert<uint16_t>(from, count, to, [](uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); });
    case DType::f8_e4m3:
      return convert<uint8_t>(from, count, to, [](uint8_t x) { return e4m3[x]; });
    case DType::f8_e5m2:
      return convert<uint8_t>(from, count, to, [](uint8_t x) { return e5m2[x]; });
    default:
      throw InternalError("checkpoint.to_f32", std::string(dtype_name(dtype)) + " is not a floating type");
  }
}

namespace {

/// No element has all of these bits: those of the exponent, or, of a type without infinities, all but the sign.
template <class Bits>
bool none_has_all(const void* from, int64_t count, Bits mask) {
  bool any = false;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, static_cast<const char*>(from) + i * static_cast<int64_t>(sizeof bits), sizeof bits);
    any |= (bits & mask) == mask;
  }
  return !any;
}

}  // namespace

bool all_finite(DType dtype, const void* from, int64_t count) {
  switch (dtype) {
    case DType::f64:
      return none_has_all<uint64_t>(from, count, 0x7ff0000000000000);
    case DType::f32:
      return none_has_all<uint32_t>(from, count, 0x7f800000);
    case DType::f16:
      return none_has_all<uint16_t>(from, count, 0x7c00);
    case DType::bf16:
      return none_has_all<uint16_t>(from, count, 0x7f80);
    case DType::f8_e4m3:
      return none_has_all<uint8_t>(from, count, 0x7f);
    case DType::f8_e5m2:
      return none_has_all<uint8_t>(from, count, 0x7c);
    default:
      return true;
  }
}

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
