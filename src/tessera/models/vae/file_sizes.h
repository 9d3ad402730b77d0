#pragma once
// The sizes of an autoencoder as the shapes of a file's tensors tell them, and the config.json that they make.
//
//   Config config = config_of_weights(shapes_of(source), source.file);
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/models/common/weight_form.h"

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

/// The shapes of the model that a config.json is made for.
inline ShapeOf shapes_of(const ConfigSource& source) {
  return [&shapes = source.size.shapes](const std::string& name) {
    const auto found = shapes.find(name);
    return found == shapes.end() ? std::vector<int64_t>() : found->second;
  };
}

/// What the weights say, over the fields that were given; `official_key` is one that such a config.json has. Throws
/// UserError (input) for the form of diffusers, and where weights and fields differ.
template <class Config>
nlohmann::ordered_json official_config(const ConfigSource& source, const char* official_key,
                                       Config (*of_weights)(const ShapeOf&, const std::string&),
                                       void (*check)(std::string_view, const std::string&, Config&),
                                       nlohmann::ordered_json (*fields)(const Config&)) {
  if (source.diffusers)
    throw UserError(Exit::input, "models.config", "diffusers has no class for this autoencoder",
                    "convert it to official names");
  Config config = of_weights(shapes_of(source), source.file);
  check(source.given.json.dump(), source.file, config);
  nlohmann::ordered_json out = source.given.base(official_key);
  out.merge_patch(fields(config));
  return out;
}

}  // namespace tessera::models
