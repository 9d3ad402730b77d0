#include "tessera/models/vae/opensora/dc_ae_video_make.h"

#include "tessera/models/vae/opensora/dc_ae_video.h"
#include "tessera/models/vae/opensora/dc_ae_video_weight_form.h"
#include "tessera/models/vae/stored_weights.h"

namespace tessera::models::dc_ae_video {

namespace {

Tiling with_shared_frames(Tiling tiling, const Config& config) {
  const int64_t four = config.time_stride();
  if (tiling.shared_frames == Tiling::kUsual) tiling.shared_frames = tiling.frames / 4 / four * four;
  return tiling;
}

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const StoredWeights stored(weights, {"encoder.project_in.conv.weight", "decoder.project_in.main.conv.weight"},
                             "official");
  Config config = config_of_weights(stored.shapes(), weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  stored.expect(parameters(config), "Open-Sora 2.0's video DC-AE");
  const Tiling tiles = with_shared_frames(tiling, config);
  return std::make_unique<DcAeVideo>(std::move(config), stored.reader(), tiles);
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  return std::make_unique<DcAeVideo>(Config{}, random_weights(parameters({})), with_shared_frames(tiling, {}));
}

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = {weight_form()},
          .make = make,
          .usual_overlap = usual_overlap,
          .clip_cases = {"opensora_dc_ae"},
          .presets = {{"dc-ae-f32t4c128", released}}};
}

}  // namespace tessera::models::dc_ae_video
