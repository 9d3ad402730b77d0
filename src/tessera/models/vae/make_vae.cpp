// From a file of weights to an autoencoder: which one it is, how its tensors are called, whether all are there.
#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/models/vae/wan21.h"
#include "tessera/models/vae/wan_names.h"

namespace tessera::models {

namespace {

const std::vector<std::string> kVaeNamings = {"official", "diffusers"};

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

std::string foreign_name(const std::string& name, const std::string& naming) {
  return naming == "official" ? name : to_foreign(wan21_vae_names(), name);
}

/// Names of the weights for a configuration whose sizes may not be known yet: names depend on the levels alone.
Naming naming_of(const wan21::Config& config, const WeightSource& weights) {
  std::vector<std::string> official;
  for (const auto& parameter : wan21::parameters(config)) official.push_back(parameter.name);
  return detect_naming(official, foreign_name, kVaeNamings, weights.names, weights.file);
}

}  // namespace

std::unique_ptr<VideoVae> make_vae(const std::string& config_text, const std::string& config_file,
                                   const WeightSource& weights, const Tiling& tiling) {
  const bool sized = !config_text.empty();
  wan21::Config config = sized ? wan21::parse_config(config_text, config_file) : wan21::Config{};
  const Naming naming = naming_of(config, weights);
  const auto stored = [&](const std::string& name) { return naming.prefix + foreign_name(name, naming.naming); };
  const auto has = [&](const std::string& name) {
    return std::find(weights.names.begin(), weights.names.end(), name) != weights.names.end();
  };
  if (!sized)
    config = wan21::config_of_weights(
        [&](const std::string& name) {
          // Wan 2.2's names are asked for, too, and are none of ours to translate
          const std::string there = naming.naming == "official" ? naming.prefix + name : stored(name);
          return has(there) ? weights.shape(there) : std::vector<int64_t>{};
        },
        weights.file);

  net::WeightMap values;
  for (const auto& parameter : wan21::parameters(config)) {
    const std::string name = stored(parameter.name);
    check_input(has(name), "models.vae", weights.file + ": tensor '" + name + "' is missing",
                "fetch the file again, or give a whole one");
    const std::vector<int64_t> shape = weights.shape(name);
    check_input(
        shape == parameter.shape, "models.vae",
        weights.file + ": tensor '" + name + "' has shape " + text_of(shape) + ", expected " + text_of(parameter.shape),
        sized ? "does " + config_file + " belong to these weights?" : "these are not weights of Wan 2.1's VAE");
    values.emplace(parameter.name, weights.read(name));
  }
  return std::make_unique<wan21::Wan21Vae>(std::move(config), std::move(values), tiling);
}

}  // namespace tessera::models
