#pragma once
// Initial values that any rank can draw for any range of elements: element i of a parameter depends on (seed, name, i).
//
//   draw_initial(Initial::xavier(fan_in, fan_out), seed, "blocks.0.ffn.0.weight", first, count, out);
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/families/releases.h"

namespace tessera::models {

struct Initial {
  enum class Kind { constant, uniform, normal } kind;
  double value;  ///< the constant, half the width, or the standard deviation

  static Initial constant(double value) { return {Kind::constant, value}; }
  static Initial normal(double deviation) { return {Kind::normal, deviation}; }
  static Initial xavier(double fan_in, double fan_out) { return {Kind::uniform, std::sqrt(6.0 / (fan_in + fan_out))}; }
  /// Of the text and time embeddings of every model that is_released() does not know: Xavier's, with a deviation of at
  /// most 1.28 / sqrt(fan_in). Programs of large models draw them from N(0, 0.02), which is that deviation for a width of
  /// 4,096; in a narrow model they would be so small that it hardly hears its caption for thousands of steps.
  static Initial embedding(double fan_in, double fan_out) {
    return {Kind::uniform, std::min(std::sqrt(6.0 / (fan_in + fan_out)), 1.28 * std::sqrt(3 / fan_in))};
  }
};

/// Whether a model has the sizes of a preset that is a release. Its embeddings begin as those of the published program do.
template <class Config>
bool is_released(const std::vector<std::pair<std::string, Config>>& presets, const Config& config) {
  return std::ranges::any_of(presets, [&](const auto& preset) {
    return preset.second == config && families::release_of_preset(preset.first) != nullptr;
  });
}

/// Elements [first, first + count) of the parameter.
void draw_initial(Initial initial, uint64_t seed, const std::string& name, int64_t first, int64_t count, float* out);

}  // namespace tessera::models
