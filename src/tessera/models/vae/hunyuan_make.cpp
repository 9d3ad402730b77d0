#include "tessera/models/vae/hunyuan_make.h"

#include "tessera/models/vae/hunyuan.h"
#include "tessera/models/vae/hunyuan_weight_form.h"
#include "tessera/models/vae/stored_weights.h"

namespace tessera::models::hunyuan_vae {

namespace {

Tiling with_shared_frames(Tiling tiling) {
  if (tiling.shared_frames == Tiling::kUsual) tiling.shared_frames = tiling.frames / 4 / kTimeStride * kTimeStride;
  return tiling;
}

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const StoredWeights stored(weights, {"encoder.conv_in.conv.weight", "post_quant_conv.weight"}, "diffusers");
  Config config = config_of_weights(stored.shapes(), weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  check_groups(config, weights.file);
  stored.expect(parameters(config), "HunyuanVideo's autoencoder");
  return std::make_unique<HunyuanVae>(std::move(config), stored.reader(), with_shared_frames(tiling));
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  return std::make_unique<HunyuanVae>(Config{}, random_weights(parameters({})), with_shared_frames(tiling));
}

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = {weight_form()},
          .make = make,
          .usual_overlap = usual_overlap,
          .clip_cases = {"hunyuan_vae", "hunyuan_vae_tiled", "opensora_vae_tiling"},
          .presets = {{"hunyuan-vae", released}}};
}

}  // namespace tessera::models::hunyuan_vae
