#include "tessera/models/vae/hunyuan_weight_form.h"

#include "tessera/models/vae/hunyuan_config.h"

namespace tessera::models::hunyuan_vae {

namespace {

using Json = nlohmann::ordered_json;

Json config_of(const ConfigSource& source) {
  const ShapeOf shape = [&](const std::string& name) {
    const auto found = source.size.shapes.find(name);
    return found == source.size.shapes.end() ? std::vector<int64_t>() : found->second;
  };
  Config config = config_of_weights(shape, source.file);
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
