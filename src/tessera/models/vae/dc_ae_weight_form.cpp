#include "tessera/models/vae/dc_ae_weight_form.h"

#include "tessera/models/vae/dc_ae_config.h"
#include "tessera/models/vae/stored_weights.h"

namespace tessera::models::dc_ae {

namespace {

using Json = nlohmann::ordered_json;

Json config_of(const ConfigSource& source) {
  Config config = config_of_weights(shapes_of(source), source.file);
  config.scaling_factor = source.given.get<double>("scaling_factor", "scaling_factor", config.scaling_factor);
  Json out = source.given.base("attention_head_dim");
  out.update(config_json(config));
  return out;
}

}  // namespace

std::vector<WeightForm> weight_forms() {
  const WeightForm diffusers = {
      .kind = ModelKind::vae,
      .title = "DC-AE",
      .model = "dc-ae-f32c32",
      .variant = "diffusers",
      .marks = {"encoder.conv_in.weight", "decoder.up_blocks.0.0.conv.weight", "decoder.norm_out.bias"},
      .names = {.diffusers = {}, .ours_are_diffusers = true},
      .config = config_of,
      .config_marks = {"attention_head_dim", "encoder_block_types"}};
  // efficientvit joins the projections of an attention, which is no renaming: these files are read, not converted
  WeightForm original = diffusers;
  original.title.clear();
  original.variant = "efficientvit";
  original.names = {};
  original.marks = {"encoder.project_in.conv.weight", "decoder.project_in.main.conv.weight",
                    "decoder.project_out.op_list.0.bias"};
  original.mark_dims = 4;  // of pictures
  original.config = nullptr;
  return {diffusers, original};
}

}  // namespace tessera::models::dc_ae
