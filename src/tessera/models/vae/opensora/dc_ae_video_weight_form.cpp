#include "tessera/models/vae/opensora/dc_ae_video_weight_form.h"

#include "tessera/models/vae/opensora/dc_ae_video_config.h"
#include "tessera/models/vae/opensora/official_config.h"

namespace tessera::models::dc_ae_video {

namespace {

nlohmann::ordered_json config_of(const ConfigSource& source) {
  return official_config(source, "temporal_downsample", config_of_weights, check_config, config_json);
}

}  // namespace

WeightForm weight_form() {
  return {.kind = ModelKind::vae,
          .title = "Open-Sora 2.0's video DC-AE",
          .model = "dc-ae-f32t4c128",
          .variant = {},
          .marks = {"encoder.project_in.conv.weight", "decoder.project_in.main.conv.weight",
                    "decoder.project_out.op_list.2.conv.weight"},
          .mark_dims = 5,  // that of pictures has the same names
          .names = {},     // every program has the same
          .config = config_of,
          .config_marks = {"temporal_downsample", "time_compression_ratio", "width_list"}};
}

}  // namespace tessera::models::dc_ae_video
