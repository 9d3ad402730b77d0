#include "tessera/models/vae/opensora/opensora12_weight_form.h"

#include "tessera/base/check.h"
#include "tessera/models/vae/opensora/opensora12_config.h"

namespace tessera::models::opensora12_vae {

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
  Json out = source.given.base("vae_temporal");
  out.merge_patch(config_json(config));
  return out;
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
