#include "tessera/models/vae/opensora/opensora13_weight_form.h"

#include "tessera/models/vae/opensora/official_config.h"
#include "tessera/models/vae/opensora/opensora13_config.h"

namespace tessera::models::opensora13_vae {

namespace {

nlohmann::ordered_json config_of(const ConfigSource& source) {
  return official_config(source, "decoder", config_of_weights, check_config, config_json);
}

}  // namespace

WeightForm weight_form() {
  return {.kind = ModelKind::vae,
          .title = "Open-Sora 1.3's autoencoder",
          .model = "opensora1.3-vae",
          .variant = {},
          .marks = {"encoder.down.0.block.0.conv1.conv.weight", "decoder.up.2.upsample.conv3d.conv1.conv.weight",
                    "encoder.mid.attn_1.q.conv.weight"},
          .names = {},  // every program has the same
          .config = config_of,
          .config_marks = {"encoder", "decoder", "micro_frame_size"}};
}

}  // namespace tessera::models::opensora13_vae
