#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/models/common/config_reader.h"
#include "tessera/models/vae/dc_ae_video_config.h"

namespace tessera::models::dc_ae_video {

namespace {

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw UserError(Exit::input, "models.vae", file + ": " + what,
                  "the video DC-AE of Open-Sora 2.0 is supported; is this another autoencoder, or part of a file?");
}

/// The shortcut between neighbouring stages takes pixels to channels, in groups.
void check_widths(const Config& config, const std::string& file) {
  for (size_t s = 0; s + 1 < config.stages.size(); ++s) {
    const int64_t fine = config.stages[s].width, coarse = config.stages[s + 1].width;
    if (coarse != fine && coarse != 2 * fine && coarse != 4 * fine)
      refuse(file, "goes from " + std::to_string(fine) + " to " + std::to_string(coarse) +
                       " channels: the shortcut between these stages needs 1, 2 or 4 times as many");
  }
  if (config.stages.back().width % config.latent_channels != 0)
    refuse(file, std::to_string(config.stages.back().width) +
                     " channels of the coarsest stage are not a multiple of the " +
                     std::to_string(config.latent_channels) + " of the latent");
}

template <class T, class Get>
nlohmann::ordered_json each(const Config& config, const Get& get) {
  std::vector<T> values;
  for (const Stage& stage : config.stages) values.push_back(get(stage));
  return values;
}

/// The lists of a config.json that the weights tell.
nlohmann::ordered_json lists(const Config& config) {
  return {
      {"block_type", each<std::string>(config, [](const Stage& s) { return s.attention ? "EViTS5_GLU" : "ResBlock"; })},
      {"width_list", each<int64_t>(config, [](const Stage& s) { return s.width; })},
      {"encoder_depth_list", each<int64_t>(config, [](const Stage& s) { return s.encoder_depth; })},
      {"decoder_depth_list", each<int64_t>(config, [](const Stage& s) { return s.decoder_depth; })}};
}

}  // namespace

int64_t Config::time_stride() const {
  return int64_t{1} << std::ranges::count_if(stages, [](const Stage& s) { return s.halves_time; });
}

Config config_of_weights(const ShapeOf& any, const std::string& file) {
  const ShapeOf shape = usable_shapes(any, file);
  Config config;
  const std::vector<Stage> released = std::move(config.stages);
  config.stages.clear();
  const auto at = [&](const char* half, size_t stage, int64_t block, const char* site) {
    return shape(std::string(half) + ".stages." + std::to_string(stage) + ".op_list." + std::to_string(block) + site);
  };
  constexpr const char *kResidual = ".main.conv1.conv.weight", *kQkv = ".context_module.main.qkv.conv.weight";
  const auto depth = [&](const char* half, size_t stage, int64_t first) {
    int64_t blocks = first;
    while (!at(half, stage, blocks, kResidual).empty() || !at(half, stage, blocks, kQkv).empty()) ++blocks;
    return blocks - first;
  };
  for (size_t s = 0;; ++s) {
    const std::vector<int64_t> residual = at("encoder", s, 0, kResidual), qkv = at("encoder", s, 0, kQkv);
    if (residual.size() != 5 && qkv.size() != 5) break;
    Stage stage = {.width = residual.empty() ? qkv[1] : residual[0], .attention = residual.empty()};
    stage.encoder_depth = depth("encoder", s, 0);
    stage.decoder_depth = depth("decoder", s, at("decoder", s, 0, ".main.conv.conv.weight").empty() ? 0 : 1);
    stage.halves_time = s < released.size() && released[s].halves_time;
    if (stage.attention) {
      const std::vector<int64_t> grouped = at("encoder", s, 0, ".context_module.main.aggreg.0.1.weight");
      if (grouped.size() != 5) refuse(file, "encoder.stages." + std::to_string(s) + " has attention of one scale");
      config.head_dim = grouped[1];
    }
    config.stages.push_back(stage);
  }
  const std::vector<int64_t> latent = shape("encoder.project_out.main.op_list.0.conv.weight");
  if (config.stages.empty() || latent.size() != 5)
    refuse(file,
           "its tensors do not tell the sizes of a video DC-AE (no encoder.stages.0 of three dimensions, or no "
           "encoder.project_out)");
  if (config.stages.size() > kMostLevels)
    refuse(file,
           "has " + std::to_string(config.stages.size()) + " stages, expected at most " + std::to_string(kMostLevels));
  config.latent_channels = latent[0];
  check_widths(config, file);
  return config;
}

void check_config(std::string_view text, const std::string& file, Config& config) {
  const ConfigReader json(text, file);
  json.expect("in_channels", 3);
  json.expect("latent_channels", config.latent_channels);
  json.without_effect({"spatial_tile_size", "temporal_tile_size", "tile_overlap_factor"});  // tiles are the caller's
  const nlohmann::ordered_json known = lists(config);
  for (const auto& [key, value] : known.items()) json.expect(key.c_str(), value);
  for (const char* key : {"_attention_head_dim", "attention_head_dim"}) json.expect(key, config.head_dim);
  const std::vector<bool> halves = json.flags("temporal_downsample", {});
  if (!halves.empty() && halves.size() != config.stages.size())
    json.fail("temporal_downsample has " + std::to_string(halves.size()) + " flags, expected one for each of the " +
              std::to_string(config.stages.size()) + " stages");
  for (size_t s = 0; s < halves.size(); ++s) config.stages[s].halves_time = halves[s];
  if (config.stages.back().halves_time) json.fail("temporal_downsample of the last stage: no other one follows it");
  json.expect("spatial_compression_ratio", config.stride());
  json.expect("time_compression_ratio", config.time_stride());
  config.scaling_factor = json.real("scaling_factor", config.scaling_factor);
  if (config.scaling_factor <= 0) json.fail("scaling_factor is not positive: latents are divided by it");
}

nlohmann::ordered_json config_json(const Config& config) {
  nlohmann::ordered_json json = {{"_class_name", "DCAE"},
                                 {"in_channels", 3},
                                 {"latent_channels", config.latent_channels},
                                 {"time_compression_ratio", config.time_stride()},
                                 {"spatial_compression_ratio", config.stride()}};
  json.update(lists(config));
  json["temporal_downsample"] = each<bool>(config, [](const Stage& s) { return s.halves_time; });
  json["scaling_factor"] = config.scaling_factor;
  return json;
}

namespace {

nlohmann::ordered_json config_of(const ConfigSource& source) {
  return official_config(source, "temporal_downsample", config_of_weights, check_config, config_json);
}

}  // namespace

WeightForm weight_form() {
  return {.kind = ModelKind::vae,
          .title = "Open-Sora 2.0's video DC-AE",
          .model = "dc-ae-f32t4c128",
          .variant = {},
          .marks = {"encoder.project_in.conv.weight", "decoder.project_in.main.conv.weight",
                    "decoder.project_out.op_list.2.conv.weight"},
          .mark_dims = 5,  // that of pictures has the same names
          .names = {},     // every program has the same
          .config = config_of,
          .config_marks = {"temporal_downsample", "time_compression_ratio", "width_list"}};
}

}  // namespace tessera::models::dc_ae_video
