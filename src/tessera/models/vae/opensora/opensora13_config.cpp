#include "tessera/models/vae/opensora/opensora13_config.h"

#include "tessera/base/check.h"
#include "tessera/models/common/config_reader.h"
#include "tessera/models/vae/opensora/opensora13_statistics.h"

namespace tessera::models::opensora13_vae {

namespace {

constexpr size_t kLevels = 4;
const std::vector<int64_t> kHalvesTime = {1, 2}, kDoublesTime = {2, 3};  // levels, from full resolution down

constexpr std::pair<Normalization, const char*> kNormalizations[] = {{Normalization::video, "video"},
                                                                     {Normalization::video_5frames, "video_5frames"}};

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw UserError(Exit::input, "models.vae", file + ": " + what, "give model.safetensors of OpenSora-VAE-v1.3");
}

void check_half(const nlohmann::json& all, const std::string& file, const char* half, const Config& config) {
  if (!all.contains(half) || !all[half].is_object()) return;
  const ConfigReader json(all[half].dump(), file + ": " + half);
  std::vector<int64_t> multipliers;
  for (const int64_t width : config.widths) multipliers.push_back(width / config.widths.front());
  json.expect("double_z", true);
  json.expect("in_channels", 3);
  json.expect("out_ch", 3);
  json.expect("z_channels", config.latent_channels);
  json.expect("ch", config.widths.front());
  json.expect("ch_mult", multipliers);
  json.expect("num_res_blocks", config.layers);
  json.expect("down_sampling_layer", kHalvesTime);
  json.expect("temporal_up_layers", kDoublesTime);
}

}  // namespace

Config config_of_weights(const ShapeOf& any, const std::string& file) {
  const ShapeOf shape = usable_shapes(any, file);
  Config config;
  config.widths.clear();
  const auto conv1 = [&](size_t level, int64_t block) {
    return shape("encoder.down." + std::to_string(level) + ".block." + std::to_string(block) + ".conv1.conv.weight");
  };
  for (size_t level = 0; conv1(level, 0).size() == 5; ++level) config.widths.push_back(conv1(level, 0)[0]);
  const std::vector<int64_t> latent = shape("decoder.conv_in.conv.weight");
  if (config.widths.size() != kLevels || latent.size() != 5)
    refuse(file, "has " + std::to_string(config.widths.size()) +
                     " levels in encoder.down, expected 4, beside decoder.conv_in.conv");
  for (config.layers = 0; !conv1(0, config.layers).empty();) ++config.layers;
  config.latent_channels = latent[1];
  if (config.latent_channels != static_cast<int64_t>(kMean.size())) config.normalization = Normalization::none;
  return config;
}

void check_config(std::string_view text, const std::string& file, Config& config) {
  const ConfigReader json(text, file);
  const nlohmann::json all = json_or_nothing(text);
  for (const char* half : {"encoder", "decoder"}) check_half(all, file, half, config);
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
  for (const int64_t width : config.widths)
    if (width % config.groups != 0)
      refuse(file, std::to_string(width) + " channels do not divide into " + std::to_string(config.groups) +
                       " groups, and norm_num_groups of a config.json beside it does not say otherwise");
  if (config.normalization != Normalization::none && config.latent_channels != static_cast<int64_t>(kMean.size()))
    refuse(file, "has latents of " + std::to_string(config.latent_channels) +
                     " channels: the statistics of its normalization are of " + std::to_string(kMean.size()));
}

nlohmann::ordered_json config_json(const Config& config) {
  std::vector<int64_t> multipliers;
  for (const int64_t width : config.widths) multipliers.push_back(width / config.widths.front());
  const auto half = [&](const char* type) {
    return nlohmann::ordered_json{{"type", type},
                                  {"double_z", true},
                                  {"z_channels", config.latent_channels},
                                  {"in_channels", 3},
                                  {"out_ch", 3},
                                  {"ch", config.widths.front()},
                                  {"ch_mult", multipliers},
                                  {"num_res_blocks", config.layers}};
  };
  nlohmann::ordered_json encoder = half("VideoEncoder"), decoder = half("VideoDecoder"), normalization;
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

}  // namespace tessera::models::opensora13_vae
