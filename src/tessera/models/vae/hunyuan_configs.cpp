#include "tessera/models/vae/hunyuan_configs.h"

#include <algorithm>

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

namespace tessera::models::hunyuan15_vae {

namespace {

int64_t halvings_of(int64_t stride) {
  int64_t count = 0;
  while (stride > 1) stride /= 2, ++count;
  return count;
}

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw UserError(Exit::input, "models.vae", file + ": " + what,
                  "give the vae folder of HunyuanVideo-1.5, of either release");
}

}  // namespace

int64_t Config::halvings() const { return halvings_of(stride); }
int64_t Config::time_halvings() const { return halvings_of(time_stride); }

Config config_of_weights(const ShapeOf& any, const std::string& file) {
  const ShapeOf shape = usable_shapes(any, file);
  const auto conv1 = [&](size_t level, int64_t block) {
    return shape("encoder.down." + std::to_string(level) + ".block." + std::to_string(block) + ".conv1.conv.weight");
  };
  Config config;
  config.widths.clear();
  for (size_t level = 0; level < kMostLevels && conv1(level, 0).size() == 5; ++level)
    config.widths.push_back(conv1(level, 0)[0]);
  const std::vector<int64_t> latent = shape("decoder.conv_in.conv.weight");
  if (config.widths.empty() || latent.size() != 5) refuse(file, "has no levels in encoder.down, or no decoder.conv_in");
  config.layers = 0;
  while (config.layers < ConfigReader::kMostLayers && !conv1(0, config.layers).empty()) ++config.layers;
  config.latent_channels = latent[1];
  config.stride = config.time_stride = 1;
  const auto divides = [&](int64_t large, int64_t small, const std::string& what) {
    if (large % small != 0)
      refuse(file, what + ": " + std::to_string(large) + " channels are no multiple of " + std::to_string(small));
  };
  for (size_t level = 0; level + 1 < config.widths.size(); ++level) {
    const auto down = shape("encoder.down." + std::to_string(level) + ".downsample.conv.conv.weight");
    if (down.size() != 5) break;
    config.stride *= 2;
    // of frames as well where the block of what becomes a cell is 8
    if (down[0] * 8 == config.widths[level + 1])
      config.time_stride *= 2;
    else if (config.time_stride > 1)
      refuse(file, "halves time in a level before one that does not");
    const std::string name = "encoder.down." + std::to_string(level);
    divides(4 * config.widths[level], config.widths[level + 1], name + "'s shortcut");
    divides(config.widths[level + 1], config.time_stride > 1 ? 8 : 4, name + "'s blocks");
  }
  divides(config.widths.back(), 2 * config.latent_channels, "the shortcut of encoder.conv_out");
  return config;
}

void check_config(std::string_view text, const std::string& file, Config& config) {
  const ConfigReader json(text, file);
  json.expect("in_channels", 3);
  json.expect("out_channels", 3);
  json.expect("latent_channels", config.latent_channels);
  json.expect("block_out_channels", config.widths);
  json.expect("layers_per_block", config.layers);
  for (const char* key : {"spatial_compression_ratio", "ffactor_spatial"}) json.expect(key, config.stride);
  for (const char* key : {"temporal_compression_ratio", "ffactor_temporal"}) json.expect(key, config.time_stride);
  for (const char* key : {"downsample_match_channel", "upsample_match_channel"}) json.expect(key, true);
  json.without_effect({"sample_size", "sample_tsize"});  // tiles are the caller's
  config.scaling_factor = json.real("scaling_factor", config.scaling_factor);
  config.shift_factor = json.real("shift_factor", config.shift_factor);
  if (config.scaling_factor <= 0) json.fail("the scaling factor is not positive: latents are divided by it");
}

const KeyMap& diffusers_names() {
  static const KeyMap map = {{
      {"encoder.down.#.block.#.nin_shortcut.*", "encoder.down_blocks.#.resnets.#.conv_shortcut.*"},
      {"encoder.down.#.block.#.*", "encoder.down_blocks.#.resnets.#.*"},
      {"encoder.down.#.downsample.*", "encoder.down_blocks.#.downsamplers.0.*"},
      {"encoder.mid.block_1.*", "encoder.mid_block.resnets.0.*"},
      {"encoder.mid.block_2.*", "encoder.mid_block.resnets.1.*"},
      {"encoder.mid.attn_1.q.*", "encoder.mid_block.attentions.0.to_q.*"},
      {"encoder.mid.attn_1.k.*", "encoder.mid_block.attentions.0.to_k.*"},
      {"encoder.mid.attn_1.v.*", "encoder.mid_block.attentions.0.to_v.*"},
      {"encoder.mid.attn_1.*", "encoder.mid_block.attentions.0.*"},
      {"decoder.mid.block_1.*", "decoder.mid_block.resnets.0.*"},
      {"decoder.mid.block_2.*", "decoder.mid_block.resnets.1.*"},
      {"decoder.mid.attn_1.q.*", "decoder.mid_block.attentions.0.to_q.*"},
      {"decoder.mid.attn_1.k.*", "decoder.mid_block.attentions.0.to_k.*"},
      {"decoder.mid.attn_1.v.*", "decoder.mid_block.attentions.0.to_v.*"},
      {"decoder.mid.attn_1.*", "decoder.mid_block.attentions.0.*"},
      {"decoder.up.#.block.#.nin_shortcut.*", "decoder.up_blocks.#.resnets.#.conv_shortcut.*"},
      {"decoder.up.#.block.#.*", "decoder.up_blocks.#.resnets.#.*"},
      {"decoder.up.#.upsample.*", "decoder.up_blocks.#.upsamplers.0.*"},
  }};
  return map;
}

namespace {

using Json = nlohmann::ordered_json;

Json config_of(const ConfigSource& source) {
  Config config = config_of_weights(shapes_of(source), source.file);
  config.scaling_factor = source.given.get<double>("scaling_factor", "scaling_factor", config.scaling_factor);
  Json out = source.given.base(source.diffusers ? "spatial_compression_ratio" : "ffactor_spatial");
  out.update(Json{{"_class_name", source.diffusers ? "AutoencoderKLHunyuanVideo15" : "AutoencoderKLConv3D"},
                  {"in_channels", 3},
                  {"out_channels", 3},
                  {"latent_channels", config.latent_channels},
                  {"block_out_channels", config.widths},
                  {"layers_per_block", config.layers},
                  {source.diffusers ? "spatial_compression_ratio" : "ffactor_spatial", config.stride},
                  {source.diffusers ? "temporal_compression_ratio" : "ffactor_temporal", config.time_stride},
                  {"scaling_factor", config.scaling_factor},
                  {"downsample_match_channel", true},
                  {"upsample_match_channel", true}});
  if (source.diffusers) return out;
  for (const auto& [key, value] :
       {std::pair("sample_size", Json(256)), {"sample_tsize", Json(64)}, {"shift_factor", Json(nullptr)}})
    if (!out.contains(key)) out[key] = value;
  return out;
}

}  // namespace

WeightForm weight_form() {
  return {.kind = ModelKind::vae,
          .title = "HunyuanVideo-1.5's autoencoder",
          .model = "hunyuan15-vae",
          .variant = {},
          .marks = {"encoder.down.0.block.0.norm1.gamma", "encoder.down.0.downsample.conv.conv.weight",
                    "decoder.up.0.upsample.conv.conv.weight", "encoder.mid.attn_1.norm.gamma"},
          .names = {.diffusers = diffusers_names()},
          .config = config_of,
          .config_marks = {"ffactor_spatial", "spatial_compression_ratio"}};
}

}  // namespace tessera::models::hunyuan15_vae
