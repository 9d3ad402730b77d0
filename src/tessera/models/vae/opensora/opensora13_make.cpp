#include "tessera/models/vae/opensora/opensora13_make.h"

#include "tessera/models/vae/opensora/opensora13.h"
#include "tessera/models/vae/opensora/opensora13_weight_form.h"
#include "tessera/models/vae/stored_weights.h"

namespace tessera::models::opensora13_vae {

namespace {

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const StoredWeights stored(weights, {"encoder.conv_in.conv.weight", "encoder.mid.attn_1.q.conv.weight"}, "official");
  Config config = config_of_weights(stored.shapes(), weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  check_sizes(config, weights.file);
  stored.expect(parameters(config), "Open-Sora 1.3's autoencoder");
  return std::make_unique<OpenSoraVae13>(std::move(config), stored.reader(), tiling);
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  return std::make_unique<OpenSoraVae13>(Config{}, random_weights(parameters({})), tiling);
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
