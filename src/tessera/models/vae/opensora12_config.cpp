#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/models/common/config_reader.h"
#include "tessera/models/vae/opensora12_config.h"

namespace tessera::models::opensora12_vae {

namespace {

constexpr size_t kLevels = 4;

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw UserError(Exit::input, "models.vae", file + ": " + what, "give model.safetensors of OpenSora-VAE-v1.2");
}

std::vector<double> per_channel(const ConfigReader& json, const char* key, const std::vector<double>& absent) {
  std::vector<double> values = json.reals(key, absent);
  if (values.size() != absent.size())
    json.fail(std::string(key) + " has " + std::to_string(values.size()) + " numbers, expected one for each of the " +
              std::to_string(absent.size()) + " latent channels");
  return values;
}

}  // namespace

int64_t Config::time_stride() const { return int64_t{1} << std::ranges::count(halved, true); }

Config config_of_weights(const ShapeOf& any, const std::string& file) {
  const ShapeOf shape = usable_shapes(any, file);
  Config config;
  config.widths.clear();
  const std::string pictures = "spatial_vae.module.", time = "temporal_vae.encoder.";
  const auto conv1 = [&](size_t level, int64_t block) {
    return shape(pictures + "encoder.down_blocks." + std::to_string(level) + ".resnets." + std::to_string(block) +
                 ".conv1.weight");
  };
  const auto time_conv1 = [&](size_t level, int64_t block) {
    return shape(time + "block_res_blocks." + std::to_string(level) + "." + std::to_string(block) +
                 ".conv1.conv.weight");
  };
  for (size_t level = 0; conv1(level, 0).size() == 4; ++level) config.widths.push_back(conv1(level, 0)[0]);
  const std::vector<int64_t> latent = shape(pictures + "post_quant_conv.weight");
  if (config.widths.size() != kLevels || latent.size() != 4)
    refuse(file, "has " + std::to_string(config.widths.size()) +
                     " levels in spatial_vae.module.encoder.down_blocks, expected 4, beside quant_conv and "
                     "post_quant_conv");
  for (config.layers = 0; !conv1(0, config.layers).empty();) ++config.layers;
  config.latent_channels = latent[0];
  config.time_widths.clear(), config.halved.clear();
  for (size_t level = 0; time_conv1(level, 0).size() == 5; ++level) {
    config.time_widths.push_back(time_conv1(level, 0)[0]);
    if (level > 0)
      config.halved.push_back(!shape(time + "conv_blocks." + std::to_string(level - 1) + ".conv.weight").empty());
  }
  if (config.time_widths.empty() || config.time_widths.size() > kMostLevels)
    refuse(file, "has " + std::to_string(config.time_widths.size()) +
                     " levels in temporal_vae.encoder.block_res_blocks, expected 1 to " + std::to_string(kMostLevels));
  const std::vector<int64_t> first = shape(time + "conv_in.conv.weight");
  if (first.size() != 5) refuse(file, "has no temporal_vae.encoder.conv_in");
  config.time_first = first[0];
  for (config.time_layers = 0; !time_conv1(0, config.time_layers).empty();) ++config.time_layers;
  if (config.latent_channels != static_cast<int64_t>(config.mean.size()))
    config.mean.assign(static_cast<size_t>(config.latent_channels), 0),
        config.std.assign(static_cast<size_t>(config.latent_channels), 1);
  return config;
}

void check_config(std::string_view text, const std::string& file, Config& config) {
  const ConfigReader json(text, file), pictures = json.inner("vae_2d"), time = json.inner("vae_temporal");
  json.expect("model_type", "VideoAutoencoderPipeline");
  json.without_effect({"micro_batch_size"});  // it splits the work, not its result
  pictures.without_effect({"type", "sample_size", "force_upcast"});
  for (const char* half : {"down_block_types", "up_block_types"})
    pictures.expect(half,
                    std::vector<std::string>(kLevels, half[0] == 'd' ? "DownEncoderBlock2D" : "UpDecoderBlock2D"));
  time.without_effect({"type"});
  pictures.expect("in_channels", 3);
  pictures.expect("out_channels", 3);
  pictures.expect("latent_channels", config.latent_channels);
  pictures.expect("block_out_channels", config.widths);
  pictures.expect("layers_per_block", config.layers);
  config.groups = pictures.size("norm_num_groups", config.groups);
  for (const char* key : {"in_out_channels", "latent_embed_dim", "embed_dim"}) time.expect(key, config.latent_channels);
  time.expect("num_res_blocks", config.time_layers);
  time.expect("filters", config.time_first);
  std::vector<int64_t> levels;
  for (const int64_t factor : time.sizes("channel_multipliers", {})) levels.push_back(config.time_first * factor);
  if (!levels.empty() && levels != config.time_widths)
    time.fail("filters and channel_multipliers make levels of " + nlohmann::json(levels).dump() +
              " channels, the weights have " + nlohmann::json(config.time_widths).dump());
  time.expect("activation_fn", "swish");
  time.expect("temporal_downsample", config.halved);
  config.time_groups = time.size("num_groups", config.time_groups);
  config.factor = json.real("scaling_2d", config.factor);
  config.piece = json.size("micro_frame_size", config.piece);
  config.mean = per_channel(json, "shift", config.mean);
  config.std = per_channel(json, "scale", config.std);
  if (std::ranges::any_of(config.std, [](double s) { return s <= 0; }) || config.factor <= 0)
    json.fail("a scale is not positive: latents are divided by it");
}

void check_groups(const Config& config, const std::string& file) {
  const auto check = [&](const std::vector<int64_t>& widths, int64_t groups, const char* key) {
    for (const int64_t width : widths)
      if (width % groups != 0)
        refuse(file, std::to_string(width) + " channels do not divide into " + std::to_string(groups) +
                         " groups, and " + key + " of a config.json beside it does not say otherwise");
  };
  check(config.widths, config.groups, "vae_2d.norm_num_groups");
  check(config.time_widths, config.time_groups, "vae_temporal.num_groups");
  check({config.time_first}, config.time_groups, "vae_temporal.num_groups");
}

nlohmann::ordered_json config_json(const Config& config) {
  std::vector<int64_t> multipliers;
  for (const int64_t width : config.time_widths) multipliers.push_back(width / config.time_first);
  return {{"architectures", {"VideoAutoencoderPipeline"}},
          {"model_type", "VideoAutoencoderPipeline"},
          {"micro_frame_size", config.piece},
          {"shift", config.mean},
          {"scale", config.std},
          {"vae_2d",
           {{"type", "VideoAutoencoderKL"},
            {"latent_channels", config.latent_channels},
            {"block_out_channels", config.widths},
            {"layers_per_block", config.layers},
            {"norm_num_groups", config.groups}}},
          {"vae_temporal",
           {{"type", "VAE_Temporal_SD"},
            {"in_out_channels", config.latent_channels},
            {"latent_embed_dim", config.latent_channels},
            {"embed_dim", config.latent_channels},
            {"filters", config.time_first},
            {"num_res_blocks", config.time_layers},
            {"channel_multipliers", multipliers},
            {"temporal_downsample", config.halved},
            {"num_groups", config.time_groups}}}};
}

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
