#include "tessera/models/vae/opensora/dc_ae_video_weight_form.h"

#include "tessera/base/check.h"
#include "tessera/models/vae/opensora/dc_ae_video_config.h"

namespace tessera::models::dc_ae_video {

namespace {

using Json = nlohmann::ordered_json;

Json config_of(const ConfigSource& source) {
  if (source.diffusers)
    throw UserError(Exit::input, "models.config", "diffusers has no class for this autoencoder",
                    "convert it to official names");
  const ShapeOf shape = [&](const std::string& name) {
    const auto found = source.size.shapes.find(name);
    return found == source.size.shapes.end() ? std::vector<int64_t>() : found->second;
  };
  Config config = config_of_weights(shape, source.file);
  check_config(source.given.json.dump(), source.file, config);
  Json out = source.given.base("temporal_downsample");
  out.merge_patch(config_json(config));
  return out;
}

}  // namespace

WeightForm weight_form() {
  return {.kind = ModelKind::vae,
          .title = "Open-Sora 2.0's video DC-AE",
          .model = "dc-ae-f32t4c128",
          .variant = {},
          .marks = {"encoder.project_in.conv.weight", "decoder.project_in.main.conv.weight",
                    "encoder.stages.0.op_list.0.main.conv1.conv.weight"},
          .mark_dims = 5,  // that of pictures has the same names
          .names = {},     // every program has the same
          .config = config_of,
          .config_marks = {"temporal_downsample", "time_compression_ratio", "width_list"}};
}

}  // namespace tessera::models::dc_ae_video
