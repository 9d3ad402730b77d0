#pragma once
// How a file's tensors are asked for their shapes, from which an autoencoder's sizes follow.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::models {

/// The shape of a tensor by its name; empty when it is not there.
using ShapeOf = std::function<std::vector<int64_t>(const std::string& name)>;

}  // namespace tessera::models
