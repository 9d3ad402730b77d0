#include "tessera/models/vae/opensora/opensora13_make.h"

#include <map>

#include "tessera/models/vae/opensora/opensora13.h"
#include "tessera/models/vae/opensora/opensora13_weight_form.h"
#include "tessera/models/vae/stored_weights.h"

namespace tessera::models::opensora13_vae {

namespace {

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const auto same = [](const std::string& name, const std::string&) { return name; };
  const std::string prefix = detect_naming({"encoder.conv_in.conv.weight", "encoder.mid.attn_1.q.conv.weight"}, same,
                                           {"official"}, weights.names, weights.file)
                                 .prefix;
  Config config = config_of_weights(
      [&](const std::string& name) {
        return has_tensor(weights, prefix + name) ? weights.shape(prefix + name) : std::vector<int64_t>{};
      },
      weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  check_sizes(config, weights.file);
  for (const Parameter& parameter : parameters(config))
    expect_tensor(weights, prefix + parameter.name, parameter.shape,
                  "these are not weights of Open-Sora 1.3's autoencoder");
  return std::make_unique<OpenSoraVae13>(
      std::move(config), [prefix, read = weights.read](const std::string& name) { return read(prefix + name); },
      tiling);
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const Parameter& parameter : parameters({})) shapes[parameter.name] = parameter.shape;
  const auto read = [shapes](const std::string& name) { return random_tensor(name, shapes.at(name)); };
  return std::make_unique<OpenSoraVae13>(Config{}, read, tiling);
}

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = {weight_form()},
          .make = make,
          .usual_overlap = usual_overlap,
          .clip_cases = {"opensora_vae13"},
          .presets = {{"opensora1.3-vae", released}}};
}

}  // namespace tessera::models::opensora13_vae
