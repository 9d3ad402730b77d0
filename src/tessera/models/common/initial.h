#pragma once
// Initial values that any rank can draw for any range of elements: element i of a parameter depends on (seed, name, i).
//
//   draw_initial(Initial::xavier(fan_in, fan_out), seed, "blocks.0.ffn.0.weight", first, count, out);
#include <cmath>
#include <cstdint>
#include <string>

namespace tessera::models {

struct Initial {
  enum class Kind { constant, uniform, normal } kind;
  double value;  ///< the constant, half the width, or the standard deviation

  static Initial constant(double value) { return {Kind::constant, value}; }
  static Initial normal(double deviation) { return {Kind::normal, deviation}; }
  static Initial xavier(double fan_in, double fan_out) { return {Kind::uniform, std::sqrt(6.0 / (fan_in + fan_out))}; }
};

/// Elements [first, first + count) of the parameter.
void draw_initial(Initial initial, uint64_t seed, const std::string& name, int64_t first, int64_t count, float* out);

}  // namespace tessera::models
