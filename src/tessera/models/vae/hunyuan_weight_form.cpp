#include "tessera/models/vae/hunyuan_weight_form.h"

#include "tessera/models/vae/hunyuan_config.h"
#include "tessera/models/vae/stored_weights.h"

namespace tessera::models::hunyuan_vae {

namespace {

using Json = nlohmann::ordered_json;

Json config_of(const ConfigSource& source) {
  Config config = config_of_weights(shapes_of(source), source.file);
  config.groups = source.given.get<int64_t>("norm_num_groups", "norm_num_groups", config.groups);
  config.scaling_factor = source.given.get<double>("scale_factor", "scaling_factor", config.scaling_factor);
  Json out = source.given.base("spatial_compression_ratio");
  out.update(config_json(config));
  return out;
}

}  // namespace

WeightForm weight_form() {
  return {.kind = ModelKind::vae,
          .title = "HunyuanVideo's autoencoder",
          .model = "hunyuan-vae",
          .variant = {},
          .marks = {"encoder.down_blocks.0.resnets.0.conv1.conv.weight",
                    "decoder.up_blocks.1.upsamplers.0.conv.conv.weight", "post_quant_conv.weight"},
          .names = {},  // every program has the same
          .config = config_of,
          .config_marks = {"temporal_compression_ratio", "time_compression_ratio", "norm_num_groups"}};
}

}  // namespace tessera::models::hunyuan_vae
