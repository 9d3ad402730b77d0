#pragma once
// The config.json of an autoencoder that has official names alone.
#include <string>
#include <string_view>

#include "tessera/base/check.h"
#include "tessera/models/vae/stored_weights.h"

namespace tessera::models {

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
