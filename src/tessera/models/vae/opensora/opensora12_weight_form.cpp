#include "tessera/models/vae/opensora/opensora12_weight_form.h"

#include "tessera/models/vae/opensora/official_config.h"
#include "tessera/models/vae/opensora/opensora12_config.h"

namespace tessera::models::opensora12_vae {

namespace {

nlohmann::ordered_json config_of(const ConfigSource& source) {
  return official_config(source, "vae_temporal", config_of_weights, check_config, config_json);
}

}  // namespace

WeightForm weight_form() {
  return {.kind = ModelKind::vae,
          .title = "Open-Sora 1.2's autoencoder",
          .model = "opensora1.2-vae",
          .variant = {},
          .marks = {"spatial_vae.module.encoder.conv_in.weight", "temporal_vae.encoder.conv_in.conv.weight",
                    "temporal_vae.decoder.conv_out.conv.weight"},
          .names = {},  // every program has the same
          .official_only = {"scale", "shift"},
          .config = config_of,
          .config_marks = {"vae_2d", "vae_temporal", "micro_frame_size"}};
}

}  // namespace tessera::models::opensora12_vae
