#include "tessera/models/vae/opensora_configs.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/models/common/config_reader.h"

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

namespace tessera::models::opensora13_vae {

namespace {

constexpr size_t kLevels = 4;
const std::vector<int64_t> kHalvesTime = {1, 2}, kDoublesTime = {2, 3};  // levels, from full resolution down

constexpr std::pair<Normalization, const char*> kNormalizations[] = {{Normalization::video, "video"},
                                                                     {Normalization::video_5frames, "video_5frames"}};

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw UserError(Exit::input, "models.vae", file + ": " + what, "give model.safetensors of OpenSora-VAE-v1.3");
}

/// Of the first convolution's channels; 0 where they are no multiples.
std::vector<int64_t> multipliers(const std::vector<int64_t>& widths, int64_t first) {
  std::vector<int64_t> all;
  for (const int64_t width : widths) all.push_back(width % first == 0 ? width / first : 0);
  return all;
}

void check_half(const ConfigReader& json, int64_t first, const std::vector<int64_t>& widths, int64_t layers,
                const Config& config) {
  json.expect("double_z", true);
  json.expect("in_channels", 3);
  json.expect("out_ch", 3);
  json.expect("z_channels", config.latent_channels);
  const int64_t unit = json.size("ch", first);
  std::vector<int64_t> given;
  for (const int64_t factor : json.sizes("ch_mult", multipliers(widths, unit))) given.push_back(unit * factor);
  if (given != widths)
    json.fail("ch and ch_mult make levels of " + nlohmann::json(given).dump() + " channels, the weights have " +
              nlohmann::json(widths).dump());
  json.expect("num_res_blocks", layers);
  json.expect("down_sampling_layer", kHalvesTime);
  json.expect("temporal_up_layers", kDoublesTime);
  json.without_effect({"type"});
}

/// Channels of a half's levels, from full resolution down, and residual blocks in each.
std::pair<std::vector<int64_t>, int64_t> levels_of(const ShapeOf& shape, const std::string& half,
                                                   const std::string& file) {
  const auto conv1 = [&](size_t level, int64_t block) {
    return shape(half + "." + std::to_string(level) + ".block." + std::to_string(block) + ".conv1.conv.weight");
  };
  std::vector<int64_t> widths;
  for (size_t level = 0; conv1(level, 0).size() == 5; ++level) widths.push_back(conv1(level, 0)[0]);
  if (widths.size() != kLevels)
    refuse(file,
           "has " + std::to_string(widths.size()) + " levels in " + half + ", expected 4, beside decoder.conv_in.conv");
  int64_t layers = 0;
  while (!conv1(0, layers).empty()) ++layers;
  return {widths, layers};
}

}  // namespace

Config config_of_weights(const ShapeOf& any, const std::string& file) {
  const ShapeOf shape = usable_shapes(any, file);
  Config config;
  std::tie(config.widths, config.layers) = levels_of(shape, "encoder.down", file);
  std::tie(config.decoder_widths, config.decoder_layers) = levels_of(shape, "decoder.up", file);
  --config.decoder_layers;
  const std::vector<int64_t> latent = shape("decoder.conv_in.conv.weight");
  if (latent.size() != 5) refuse(file, "has no decoder.conv_in.conv");
  config.latent_channels = latent[1];
  const std::vector<int64_t> first = shape("encoder.conv_in.conv.weight");
  if (first.size() != 5) refuse(file, "has no encoder.conv_in.conv");
  config.first = first[0];
  if (config.latent_channels != static_cast<int64_t>(kMean.size())) config.normalization = Normalization::none;
  return config;
}

void check_config(std::string_view text, const std::string& file, Config& config) {
  const ConfigReader json(text, file);
  const ConfigReader encoder = json.inner("encoder");
  encoder.expect("ch", config.first);
  check_half(encoder, config.first, config.widths, config.layers, config);
  check_half(json.inner("decoder"), config.decoder_widths.front(), config.decoder_widths, config.decoder_layers,
             config);
  json.without_effect({"micro_batch_size_2d", "use_tiled_conv3d"});  // which split the work, not its result
  for (const char* key : {"_norm_num_groups", "norm_num_groups"}) config.groups = json.size(key, config.groups);
  if (json.has("micro_frame_size")) config.piece = json.size("micro_frame_size");
  // its code takes pieces in time only where it takes them of the batch
  if (json.is_null("micro_frame_size") || json.is_null("micro_batch_size")) config.piece = 0;
  if (config.piece % kTimeStride != (config.piece == 0 ? 0 : 1) || config.piece == 1)
    json.fail("micro_frame_size is " + std::to_string(config.piece) + ", expected 1 and a multiple of 4");
  config.overlap = json.flag("temporal_overlap", config.overlap);
  if (json.is_null("normalization")) config.normalization = Normalization::none;
  if (!json.has("normalization")) return;
  const std::string given = json.text("normalization", "");
  bool known = false;
  for (const auto& [normalization, name] : kNormalizations)
    if (given == name) config.normalization = normalization, known = true;
  if (!known) json.fail("normalization is '" + given + "', expected video, video_5frames or null");
}

void check_sizes(const Config& config, const std::string& file) {
  const std::vector<int64_t> first = {config.first};
  for (const auto* widths : {&first, &config.widths, &config.decoder_widths})
    for (const int64_t width : *widths)
      if (width % config.groups != 0)
        refuse(file, std::to_string(width) + " channels do not divide into " + std::to_string(config.groups) +
                         " groups, and norm_num_groups of a config.json beside it does not say otherwise");
  if (config.normalization != Normalization::none && config.latent_channels != static_cast<int64_t>(kMean.size()))
    refuse(file, "has latents of " + std::to_string(config.latent_channels) +
                     " channels: the statistics of its normalization are of " + std::to_string(kMean.size()));
}

nlohmann::ordered_json config_json(const Config& config) {
  const auto half = [&](const char* type, int64_t first, const std::vector<int64_t>& widths, int64_t layers) {
    return nlohmann::ordered_json{
        {"type", type}, {"double_z", true}, {"z_channels", config.latent_channels},  {"in_channels", 3},
        {"out_ch", 3},  {"ch", first},      {"ch_mult", multipliers(widths, first)}, {"num_res_blocks", layers}};
  };
  nlohmann::ordered_json encoder = half("VideoEncoder", config.first, config.widths, config.layers),
                         decoder = half("VideoDecoder", config.decoder_widths.front(), config.decoder_widths,
                                        config.decoder_layers),
                         normalization;
  encoder["down_sampling_layer"] = kHalvesTime;
  decoder.erase("double_z");
  decoder["temporal_up_layers"] = kDoublesTime;
  for (const auto& [known, name] : kNormalizations)
    if (config.normalization == known) normalization = name;
  nlohmann::ordered_json json = {{"architectures", {"OpenSoraVAE_V1_3_Pipline"}},
                                 {"model_type", "OpenSoraVAE_V1_3_Pipline"},
                                 {"encoder", encoder},
                                 {"decoder", decoder},
                                 {"micro_frame_size", config.piece},
                                 {"temporal_overlap", config.overlap},
                                 {"normalization", normalization}};
  if (config.piece == 0) json["micro_frame_size"] = nullptr;
  if (config.groups != Config{}.groups) json["norm_num_groups"] = config.groups;  // ours
  return json;
}

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
