#include "tessera/models/vae/opensora/opensora12_make.h"

#include "tessera/base/check.h"
#include "tessera/models/vae/opensora/opensora12.h"
#include "tessera/models/vae/opensora/opensora12_weight_form.h"
#include "tessera/models/vae/stored_weights.h"

namespace tessera::models::opensora12_vae {

namespace {

/// A buffer of the file, which counts more than what a config.json says.
void take_stored(const WeightSource& weights, const std::string& name, std::vector<double>& values) {
  if (!has_tensor(weights, name)) return;
  const Tensor stored = weights.read(name).to(at::kDouble).flatten().contiguous();
  check_input(stored.numel() == static_cast<int64_t>(values.size()), "models.vae",
              weights.file + ": tensor '" + name + "' has " + std::to_string(stored.numel()) +
                  " numbers, expected one for each of " + std::to_string(values.size()) + " latent channels",
              "fetch the file again");
  values.assign(stored.const_data_ptr<double>(), stored.const_data_ptr<double>() + stored.numel());
}

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const StoredWeights stored(
      weights, {"spatial_vae.module.encoder.conv_in.weight", "temporal_vae.encoder.conv_in.conv.weight"}, "official");
  Config config = config_of_weights(stored.shapes(), weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  check_groups(config, weights.file);
  stored.expect(parameters(config), "Open-Sora 1.2's autoencoder");
  take_stored(weights, stored.full("shift"), config.mean);
  take_stored(weights, stored.full("scale"), config.std);
  return std::make_unique<OpenSoraVae12>(std::move(config), stored.reader(), tiling);
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  return std::make_unique<OpenSoraVae12>(Config{}, random_weights(parameters({})), tiling);
}

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = {weight_form()},
          .make = make,
          .usual_overlap = usual_overlap,
          .clip_cases = {"opensora_vae12"},
          .presets = {{"opensora1.2-vae", released}}};
}

}  // namespace tessera::models::opensora12_vae
