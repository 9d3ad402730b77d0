#include "tessera/models/vae/dc_ae_config.h"

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/models/common/config_reader.h"

namespace tessera::models::dc_ae {

namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw UserError(Exit::input, "models.vae", file + ": " + what,
                  "DC-AE f32c32 of Sana is supported; is this another autoencoder, or part of a file?");
}

/// Whether the widths of neighbouring stages allow the shortcut between them: pixels to channels, in groups.
void check_widths(const std::vector<Stage>& stages, const std::string& half, const std::string& file) {
  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    const int64_t fine = stages[s].width, coarse = stages[s + 1].width;
    if (coarse % fine != 0 || (coarse != fine && coarse != 2 * fine && coarse != 4 * fine))
      refuse(file, half + " goes from " + std::to_string(fine) + " to " + std::to_string(coarse) +
                       " channels: the shortcut between these stages needs 1, 2 or 4 times as many");
  }
}

/// The stages of encoder.down_blocks or decoder.up_blocks; a stage begins with `lead` layers of another kind.
std::vector<Stage> stages_of(const std::string& blocks, const ShapeOf& shape, bool decoder, const std::string& file,
                             int64_t& head_dim) {
  std::vector<Stage> stages;
  const auto at = [&](size_t stage, int64_t block, const char* site) {
    return shape(blocks + "." + std::to_string(stage) + "." + std::to_string(block) + "." + site);
  };
  for (size_t s = 0;; ++s) {
    // the first entry of a decoder's stage but the coarsest one doubles height and width
    int64_t block = decoder && !at(s, 0, "conv.weight").empty() ? 1 : 0;
    const int64_t first = block;
    Stage stage;
    for (;; ++block) {
      const std::vector<int64_t> residual = at(s, block, "conv1.weight"), attention = at(s, block, "attn.to_q.weight");
      if (residual.size() != 4 && attention.size() != 2) break;
      const bool is_attention = residual.empty();
      if (block > first && is_attention != stage.attention)
        refuse(file, blocks + "." + std::to_string(s) + " mixes residual blocks and attention");
      stage.attention = is_attention;
      stage.width = is_attention ? attention[0] : residual[0];
      if (is_attention) {
        const std::vector<int64_t> grouped = at(s, block, "attn.to_qkv_multiscale.0.proj_out.weight");
        if (grouped.size() != 4) refuse(file, blocks + "." + std::to_string(s) + " has attention of one scale");
        head_dim = grouped[1];
      }
    }
    stage.depth = block - first;
    if (stage.depth == 0) break;
    stages.push_back(stage);
  }
  return stages;
}

/// A list of the config against that of the weights.
template <class T, class Get>
void expect_list(const ConfigReader& json, const char* key, const std::vector<Stage>& stages, const Get& get) {
  std::vector<T> found;
  for (const Stage& stage : stages) found.push_back(get(stage));
  json.expect(key, nlohmann::json(found));
}

const char* block_type(const Stage& stage) { return stage.attention ? "EfficientViTBlock" : "ResBlock"; }

/// One value for all stages, or a list of it.
void expect_all(const ConfigReader& json, const char* key, const char* value, const Config& config) {
  const auto each = std::vector<std::string>(config.decoder.size(), value);
  if (json.is_list(key))
    json.expect(key, nlohmann::json(each));
  else
    json.expect(key, value);
}

}  // namespace

Config config_of_weights(const ShapeOf& any, const std::string& file) {
  const ShapeOf shape = usable_shapes(any, file);
  Config config;
  config.encoder = stages_of("encoder.down_blocks", shape, false, file, config.head_dim);
  config.decoder = stages_of("decoder.up_blocks", shape, true, file, config.head_dim);
  const std::vector<int64_t> latent = shape("encoder.conv_out.weight");
  if (config.encoder.empty() || latent.size() != 4)
    refuse(file, "its tensors do not tell the sizes of DC-AE (no encoder.down_blocks.0, or no encoder.conv_out)");
  config.latent_channels = latent[0];
  if (config.encoder.size() > kMostLevels)
    refuse(file, "its encoder has " + std::to_string(config.encoder.size()) + " stages, expected at most " +
                     std::to_string(kMostLevels));
  if (config.encoder.size() != config.decoder.size())
    refuse(file, "its encoder has " + std::to_string(config.encoder.size()) + " stages, its decoder " +
                     std::to_string(config.decoder.size()));
  check_widths(config.encoder, "the encoder", file);
  check_widths(config.decoder, "the decoder", file);
  for (const auto* half : {&config.encoder, &config.decoder})
    if (half->back().width % config.latent_channels != 0)
      refuse(file, std::to_string(half->back().width) + " channels of the coarsest stage are not a multiple of the " +
                       std::to_string(config.latent_channels) + " of the latent");
  return config;
}

void check_config(std::string_view text, const std::string& file, Config& config) {
  const ConfigReader json(text, file);
  json.expect("in_channels", 3);
  json.expect("latent_channels", config.latent_channels);
  json.expect("attention_head_dim", config.head_dim);
  const std::pair<const char*, const std::vector<Stage>*> halves[] = {{"encoder", &config.encoder},
                                                                      {"decoder", &config.decoder}};
  for (const auto& [half, stages] : halves) {
    const std::string name = half;
    expect_list<std::string>(json, (name + "_block_types").c_str(), *stages, block_type);
    expect_list<int64_t>(json, (name + "_block_out_channels").c_str(), *stages, [](const Stage& s) { return s.width; });
    expect_list<int64_t>(json, (name + "_layers_per_block").c_str(), *stages, [](const Stage& s) { return s.depth; });
    expect_list<std::vector<int64_t>>(json, (name + "_qkv_multiscales").c_str(), *stages, [](const Stage& s) {
      return s.attention ? std::vector<int64_t>{5} : std::vector<int64_t>{};
    });
  }
  json.expect("upsample_block_type", "interpolate");
  json.expect("downsample_block_type", "conv");
  json.expect("encoder_out_shortcut", true);
  json.expect("decoder_in_shortcut", true);
  json.expect("decoder_conv_act_fn", "relu");
  expect_all(json, "decoder_norm_types", "rms_norm", config);
  expect_all(json, "decoder_act_fns", "silu", config);
  config.scaling_factor = json.real("scaling_factor", config.scaling_factor);
  if (config.scaling_factor <= 0) json.fail("scaling_factor is not positive: latents are divided by it");
}

Json config_json(const Config& config) {
  Json out = {{"_class_name", "AutoencoderDC"},
              {"in_channels", 3},
              {"latent_channels", config.latent_channels},
              {"attention_head_dim", config.head_dim}};
  const std::pair<std::string, const std::vector<Stage>*> halves[] = {{"encoder", &config.encoder},
                                                                      {"decoder", &config.decoder}};
  for (const auto& [half, stages] : halves)
    for (const Stage& stage : *stages) {
      out[half + "_block_types"].push_back(block_type(stage));
      out[half + "_block_out_channels"].push_back(stage.width);
      out[half + "_layers_per_block"].push_back(stage.depth);
      out[half + "_qkv_multiscales"].push_back(stage.attention ? Json::array({5}) : Json::array());
    }
  out.update({{"upsample_block_type", "interpolate"},
              {"downsample_block_type", "conv"},
              {"decoder_norm_types", "rms_norm"},
              {"decoder_act_fns", "silu"},
              {"encoder_out_shortcut", true},
              {"decoder_in_shortcut", true},
              {"decoder_conv_act_fn", "relu"},
              {"scaling_factor", config.scaling_factor}});
  return out;
}

namespace {

using Row = std::pair<std::string_view, std::string_view>;

// Outside the stages: beginnings of names.
constexpr Row kOutside[] = {{"encoder.conv_in.", "encoder.project_in.conv."},
                            {"encoder.conv_out.", "encoder.project_out.main.op_list.0.conv."},
                            {"decoder.conv_in.", "decoder.project_in.main.conv."},
                            {"decoder.norm_out.", "decoder.project_out.op_list.0."},
                            {"decoder.conv_out.", "decoder.project_out.op_list.2.conv."}};

// Stages of encoder and decoder: beginnings; the steps between stages; the insides of blocks.
constexpr Row kStages[] = {{"encoder.down_blocks.", "encoder.stages."}, {"decoder.up_blocks.", "decoder.stages."}};
constexpr Row kDown = {".conv.", ".main.conv."}, kUp = {".conv.", ".main.conv.conv."};
constexpr Row kInside[] = {{".attn.to_q.", ".context_module.main.qkv.conv."},
                           {".attn.to_k.", ".context_module.main.qkv.conv."},
                           {".attn.to_v.", ".context_module.main.qkv.conv."},
                           {".attn.to_qkv_multiscale.0.proj_in.", ".context_module.main.aggreg.0.0."},
                           {".attn.to_qkv_multiscale.0.proj_out.", ".context_module.main.aggreg.0.1."},
                           {".attn.to_out.", ".context_module.main.proj.conv."},
                           {".attn.norm_out.", ".context_module.main.proj.norm."},
                           {".conv_out.conv_inverted.", ".local_module.main.inverted_conv.conv."},
                           {".conv_out.conv_depth.", ".local_module.main.depth_conv.conv."},
                           {".conv_out.conv_point.", ".local_module.main.point_conv.conv."},
                           {".conv_out.norm.", ".local_module.main.point_conv.norm."},
                           {".conv1.", ".main.conv1.conv."},
                           {".conv2.", ".main.conv2.conv."},
                           {".norm.", ".main.conv2.norm."}};

bool replace(std::string& name, const Row& row) {
  const size_t at = name.find(row.first);
  if (at == std::string::npos) return false;
  name.replace(at, row.first.size(), row.second);
  return true;
}

/// "encoder.stages.3.0.attn.to_out.weight" -> "encoder.stages.3.op_list.0.context_module.main.proj.conv.weight".
std::string in_stage(std::string name) {
  const size_t stage = name.find(".stages.") + std::string_view(".stages.").size();
  name.insert(name.find('.', stage), ".op_list");
  if (replace(name, name.starts_with("encoder.") ? kDown : kUp)) return name;
  for (const Row& row : kInside)
    if (replace(name, row)) break;
  return name;
}

}  // namespace

StoredRows in_efficientvit(std::string_view diffusers_name) {
  StoredRows stored{std::string(diffusers_name)};
  for (const Row& row : kOutside)
    if (diffusers_name.starts_with(row.first)) {
      replace(stored.name, row);
      return stored;
    }
  for (int64_t part = 0; part < 3; ++part)
    if (diffusers_name.find(kInside[part].first) != std::string_view::npos) stored.part = part, stored.parts = 3;
  for (const Row& row : kStages)
    if (replace(stored.name, row)) stored.name = in_stage(std::move(stored.name));
  return stored;
}

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
