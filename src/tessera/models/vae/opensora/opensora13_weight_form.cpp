#include "tessera/models/vae/opensora/opensora13_weight_form.h"

#include "tessera/base/check.h"
#include "tessera/models/vae/opensora/opensora13_config.h"

namespace tessera::models::opensora13_vae {

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
  Json out = source.given.base("decoder");
  out.merge_patch(config_json(config));
  return out;
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
