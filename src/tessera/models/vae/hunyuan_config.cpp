#include "tessera/models/vae/hunyuan_config.h"

#include "tessera/base/check.h"
#include "tessera/models/common/config_reader.h"

namespace tessera::models::hunyuan_vae {

namespace {

constexpr size_t kLevels = 4;

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw UserError(Exit::input, "models.vae", file + ": " + what,
                  "give hunyuan_vae.safetensors, or the vae folder of HunyuanVideo");
}

}  // namespace

Config config_of_weights(const ShapeOf& any, const std::string& file) {
  const ShapeOf shape = usable_shapes(any, file);
  Config config;
  config.widths.clear();
  const auto conv1 = [&](size_t level, int64_t block) {
    return shape("encoder.down_blocks." + std::to_string(level) + ".resnets." + std::to_string(block) +
                 ".conv1.conv.weight");
  };
  for (size_t level = 0; conv1(level, 0).size() == 5; ++level) config.widths.push_back(conv1(level, 0)[0]);
  const std::vector<int64_t> latent = shape("post_quant_conv.weight");
  if (config.widths.size() != kLevels || latent.size() != 5)
    refuse(file, "has " + std::to_string(config.widths.size()) +
                     " levels in encoder.down_blocks, expected 4, beside quant_conv and post_quant_conv");
  config.layers = 0;
  while (!conv1(0, config.layers).empty()) ++config.layers;
  config.latent_channels = latent[0];
  return config;
}

void check_config(std::string_view text, const std::string& file, Config& config) {
  const ConfigReader json(text, file);
  json.expect("in_channels", 3);
  json.expect("out_channels", 3);
  json.expect("latent_channels", config.latent_channels);
  json.expect("block_out_channels", config.widths);
  json.expect("layers_per_block", config.layers);
  json.expect("act_fn", "silu");
  json.expect("mid_block_add_attention", true);
  json.expect("spatial_compression_ratio", kStride);
  for (const char* key : {"temporal_compression_ratio", "time_compression_ratio"}) json.expect(key, kTimeStride);
  // tiles are the caller's; these are of a program that has them in its config
  json.without_effect({"tile_overlap_factor", "sample_size", "sample_tsize"});
  json.without_effect({"down_block_types", "up_block_types"});  // each program has names of its own for them
  config.groups = json.size("norm_num_groups", config.groups);
  config.scaling_factor =
      json.real(json.has("scaling_factor") ? "scaling_factor" : "scale_factor", config.scaling_factor);
  config.shift_factor = json.real("shift_factor", config.shift_factor);
  if (config.scaling_factor <= 0) json.fail("the scaling factor is not positive: latents are divided by it");
}

void check_groups(const Config& config, const std::string& file) {
  for (const int64_t width : config.widths)
    if (width % config.groups != 0)
      refuse(file, std::to_string(width) + " channels do not divide into " + std::to_string(config.groups) +
                       " groups, and norm_num_groups of a config.json beside it does not say otherwise");
}

nlohmann::ordered_json config_json(const Config& config) {
  return {{"_class_name", "AutoencoderKLHunyuanVideo"},
          {"in_channels", 3},
          {"out_channels", 3},
          {"latent_channels", config.latent_channels},
          {"down_block_types", std::vector<std::string>(kLevels, "HunyuanVideoDownBlock3D")},
          {"up_block_types", std::vector<std::string>(kLevels, "HunyuanVideoUpBlock3D")},
          {"block_out_channels", config.widths},
          {"layers_per_block", config.layers},
          {"act_fn", "silu"},
          {"norm_num_groups", config.groups},
          {"scaling_factor", config.scaling_factor},
          {"spatial_compression_ratio", kStride},
          {"temporal_compression_ratio", kTimeStride},
          {"mid_block_add_attention", true}};
}

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
