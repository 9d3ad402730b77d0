#pragma once
// How a file's tensors are asked for their shapes, from which an autoencoder's sizes follow.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/check.h"

namespace tessera::models {

/// The shape of a tensor by its name; empty when it is not there.
using ShapeOf = std::function<std::vector<int64_t>(const std::string& name)>;

/// The same, where a tensor without elements, or of a side that no model has, is a UserError (input): sizes are divided
/// by others and multiplied.
inline ShapeOf usable_shapes(ShapeOf shape, std::string file) {
  return [shape = std::move(shape), file = std::move(file)](const std::string& name) {
    constexpr int64_t kMostSide = 1 << 20;
    std::vector<int64_t> found = shape(name);
    for (const int64_t side : found)
      if (side < 1 || side > kMostSide)
        throw UserError(Exit::input, "models.vae",
                        file + ": tensor '" + name + "' has a side of " + std::to_string(side) + ", expected 1 to " +
                            std::to_string(kMostSide),
                        "the file is damaged: fetch it again");
    return found;
  };
}

/// More levels than any autoencoder has: each halves the sides of a frame.
inline constexpr size_t kMostLevels = 16;

}  // namespace tessera::models
