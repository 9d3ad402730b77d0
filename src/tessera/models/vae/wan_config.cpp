#include "tessera/models/vae/wan_config.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "tessera/base/check.h"
#include "tessera/models/common/config_reader.h"

namespace tessera::models::wan_vae {

int64_t Config::time_stride() const {
  return int64_t{1} << std::count(temporal_downsample.begin(), temporal_downsample.end(), true);
}

Config wan22_config() {
  Config c;
  c.dim = 160;
  c.decoder_dim = 256;
  c.z_dim = 48;
  c.residual = true;
  c.patch = 2;
  c.mean = {kWan22Mean.begin(), kWan22Mean.end()};
  c.std = {kWan22Std.begin(), kWan22Std.end()};
  return c;
}

namespace {

void check_vae_sizes(const Config& c, const ConfigReader& json) {
  if (c.levels() > 8 || c.temporal_downsample.size() + 1 != c.dim_mult.size())
    json.fail("temperal_downsample has " + std::to_string(c.temporal_downsample.size()) + " entries, dim_mult " +
              std::to_string(c.dim_mult.size()) + ": expected one less, between neighbouring levels");
  const auto widest =
      static_cast<double>(std::max(c.dim, c.decoder_dim)) * static_cast<double>(std::ranges::max(c.dim_mult));
  json.expect_narrow("dim times dim_mult", widest);
  const auto channels = static_cast<size_t>(c.z_dim);
  if (c.mean.size() != channels || c.std.size() != channels)
    json.fail("mean and std have " + std::to_string(c.mean.size()) + " and " + std::to_string(c.std.size()) +
              " values, the latent has z_dim = " + std::to_string(c.z_dim) + " channels");
  if (std::any_of(c.std.begin(), c.std.end(), [](double s) { return s <= 0; }))
    json.fail("std has a value that is not positive: latents are divided by it");
  for (size_t i = 1; i < c.dim_mult.size(); ++i) {
    const int64_t narrow = c.dim_mult[i - 1], wide = c.dim_mult[i];
    // a step up of Wan 2.1 halves the channels of the level below; a shortcut of Wan 2.2 groups or repeats them evenly
    if (!c.residual && c.decoder_dim * wide % 2 != 0)
      json.fail("dim * dim_mult must be even: each step up halves the channels");
    if (c.residual && (wide % narrow != 0 || wide > 4 * narrow))
      json.fail("dim_mult goes from " + std::to_string(narrow) + " to " + std::to_string(wide) +
                ": the shortcut between these levels needs 1, 2 or 4 times the channels");
    if (c.residual && i + 1 == c.dim_mult.size() && wide != narrow)
      json.fail("dim_mult ends with " + std::to_string(narrow) + ", " + std::to_string(wide) +
                ": the shortcut of the last level keeps the channels");
  }
}

}  // namespace

Config parse_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  const bool diffusers = json.has("base_dim");
  const char* decoder = diffusers ? "decoder_base_dim" : "dec_dim";
  const bool two = json.has(decoder);
  Config c = two ? wan22_config() : Config{};
  if (diffusers) json.expect("is_residual", two);
  json.expect("patch_size", c.patch);
  json.expect("in_channels", 3 * c.patch * c.patch);
  json.expect("out_channels", 3 * c.patch * c.patch);
  json.expect("attn_scales", nlohmann::json::array());
  json.without_effect({"dropout"});
  c.dim = json.size(diffusers ? "base_dim" : "dim", c.dim);
  c.decoder_dim = two ? json.size(decoder) : c.dim;
  c.z_dim = json.size("z_dim", c.z_dim);
  c.dim_mult = json.sizes("dim_mult", c.dim_mult);
  c.num_res_blocks = json.size("num_res_blocks", c.num_res_blocks);
  if (c.num_res_blocks > ConfigReader::kMostLayers)
    json.fail("num_res_blocks is " + std::to_string(c.num_res_blocks) + ", expected at most " +
              std::to_string(ConfigReader::kMostLayers));
  c.temporal_downsample = json.flags("temperal_downsample", c.temporal_downsample);  // sic
  c.mean = json.reals(diffusers ? "latents_mean" : "mean", c.mean);
  c.std = json.reals(diffusers ? "latents_std" : "std", c.std);
  check_vae_sizes(c, json);
  return c;
}

Config config_of_weights(bool version_22, const ShapeOf& any, const std::string& file) {
  const ShapeOf shape = usable_shapes(any, file);
  Config c = version_22 ? wan22_config() : Config{};
  const auto refuse = [&](const std::string& what) {
    throw UserError(Exit::input, "models.vae", file + ": " + what,
                    "give the folder that has its config.json, or Wan" + std::string(c.version()) + "_VAE.pth");
  };
  const std::vector<int64_t> first = shape("encoder.conv1.weight"), last = shape("decoder.head.2.weight"),
                             latent = shape("conv2.weight");
  if (first.size() != 5 || last.size() != 5 || latent.size() != 5)
    refuse(
        "there is no config.json beside it, and encoder.conv1.weight, decoder.head.2.weight and conv2.weight do not "
        "tell the sizes");
  c.dim = first[0];
  c.decoder_dim = last[1];
  c.z_dim = latent[0];
  if (c.z_dim != static_cast<int64_t>(c.mean.size()))
    refuse("latents have " + std::to_string(c.z_dim) + " channels, and only for " + std::to_string(c.mean.size()) +
           " is the scaling known without a config.json");
  return c;
}

namespace {

using Table = std::vector<NamePattern>;

// The tensors of both autoencoders outside their stages.
const Table kFrame = {
    {"conv1.*", "quant_conv.*"},
    {"conv2.*", "post_quant_conv.*"},
    {"encoder.conv1.*", "encoder.conv_in.*"},
    {"decoder.conv1.*", "decoder.conv_in.*"},
    {"encoder.head.0.*", "encoder.norm_out.*"},
    {"decoder.head.0.*", "decoder.norm_out.*"},
    {"encoder.head.2.*", "encoder.conv_out.*"},
    {"decoder.head.2.*", "decoder.conv_out.*"},
    {"encoder.middle.1.*", "encoder.mid_block.attentions.0.*"},
    {"decoder.middle.1.*", "decoder.mid_block.attentions.0.*"},
    {"encoder.middle.0.*", "encoder.mid_block.resnets.0.*"},
    {"decoder.middle.0.*", "decoder.mid_block.resnets.0.*"},
    {"encoder.middle.2.*", "encoder.mid_block.resnets.1.*"},
    {"decoder.middle.2.*", "decoder.mid_block.resnets.1.*"},
};

/// A NamePattern is a view of its text, which lives as long as the program.
std::string_view kept(std::string text) {
  static std::mutex lock;
  static std::vector<std::unique_ptr<std::string>> texts;
  const std::lock_guard<std::mutex> guard(lock);
  return *texts.emplace_back(std::make_unique<std::string>(std::move(text)));
}

/// The stages of Wan 2.1: the decoder's list is four blocks of one residual block more than the encoder's, with upsampling
/// layers between them: 15 for the released two.
Table stages21(int64_t res_blocks) {
  constexpr int64_t kLevels = 4;
  Table table = {{"encoder.downsamples.#.*", "encoder.down_blocks.#.*"}};
  int64_t place = 0;
  const auto add = [&](int64_t level, const std::string& theirs) {
    table.push_back({kept("decoder.upsamples." + std::to_string(place++) + ".*"),
                     kept("decoder.up_blocks." + std::to_string(level) + theirs + ".*")});
  };
  for (int64_t level = 0; level < kLevels; ++level) {
    for (int64_t i = 0; i <= res_blocks; ++i) add(level, ".resnets." + std::to_string(i));
    if (level + 1 < kLevels) add(level, ".upsamplers.0");
  }
  return table;
}

Table stages22(int64_t res_blocks) {
  const std::string down = std::to_string(res_blocks), up = std::to_string(res_blocks + 1);
  return {
      {kept("encoder.downsamples.#.downsamples." + down + ".*"), "encoder.down_blocks.#.downsampler.*"},
      {"encoder.downsamples.#.downsamples.#.*", "encoder.down_blocks.#.resnets.#.*"},
      {kept("decoder.upsamples.#.upsamples." + up + ".*"), "decoder.up_blocks.#.upsampler.*"},
      {"decoder.upsamples.#.upsamples.#.*", "decoder.up_blocks.#.resnets.#.*"},
  };
}

/// The insides of a residual block at these places (under diffusers' names).
Table residual(std::initializer_list<std::string_view> places) {
  constexpr std::pair<std::string_view, std::string_view> kInside[] = {{".residual.0.*", ".norm1.*"},
                                                                       {".residual.2.*", ".conv1.*"},
                                                                       {".residual.3.*", ".norm2.*"},
                                                                       {".residual.6.*", ".conv2.*"},
                                                                       {".shortcut.*", ".conv_shortcut.*"}};
  Table table;
  for (const std::string_view place : places)
    for (const auto& [ours, theirs] : kInside)
      table.push_back({kept(std::string(place).append(ours)), kept(std::string(place).append(theirs))});
  return table;
}

Table joined(Table first, const Table& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

namespace {

/// One map for each number of residual blocks, made when it is first asked for.
template <class Make>
const KeyMap& map_for(int64_t res_blocks, const Make& make) {
  static std::mutex lock;
  static std::map<int64_t, std::unique_ptr<const KeyMap>> maps;  // of this `Make`
  const std::lock_guard<std::mutex> guard(lock);
  auto& map = maps[res_blocks];
  if (!map) map = std::make_unique<const KeyMap>(make());
  return *map;
}

}  // namespace

const KeyMap& wan21_vae_names(int64_t res_blocks) {
  return map_for(res_blocks, [&] {
    return KeyMap{joined(kFrame, stages21(res_blocks)),
                  residual({"encoder.mid_block.resnets.#", "decoder.mid_block.resnets.#", "encoder.down_blocks.#",
                            "decoder.up_blocks.#.resnets.#"})};
  });
}

const KeyMap& wan22_vae_names(int64_t res_blocks) {
  return map_for(res_blocks, [&] {
    return KeyMap{joined(kFrame, stages22(res_blocks)),
                  residual({"encoder.mid_block.resnets.#", "decoder.mid_block.resnets.#",
                            "encoder.down_blocks.#.resnets.#", "decoder.up_blocks.#.resnets.#"})};
  });
}

int64_t wan_vae_res_blocks(const std::function<bool(const std::string&)>& has) {
  constexpr int64_t kMost = 64;
  int64_t count = 0;
  const auto go_on = [&](const std::string& begin, const std::string& end) {
    while (count < kMost && has(begin + std::to_string(count) + end)) ++count;
  };
  go_on("decoder.upsamples.", ".residual.2.weight");  // up to the first upsampling layer
  go_on("decoder.upsamples.0.upsamples.", ".residual.2.weight");
  go_on("decoder.up_blocks.0.resnets.", ".conv1.weight");
  go_on("decoder.up_blocks.0.resnets.", ".residual.2.weight");
  return count > 1 ? count - 1 : kWanVaeResBlocks;
}

namespace {

using Json = nlohmann::ordered_json;

Json config_json(const ConfigSource& source) {
  const auto& [diffusers, identity, size, given, file] = source;
  Json out;
  const bool two = identity.variant == "2.2";
  const int64_t channels = size("conv2.weight", 0), base = size("encoder.conv1.weight", 0);
  const int64_t blocks = wan_vae_res_blocks([&](const std::string& name) { return size.has(name); });
  const Json mean = given.get<Json>("mean", "latents_mean", two ? Json(kWan22Mean) : Json(kWan21Mean));
  const Json deviation = given.get<Json>("std", "latents_std", two ? Json(kWan22Std) : Json(kWan21Std));
  out = given.base(diffusers ? "latents_mean" : "mean");
  out["_class_name"] = diffusers ? "AutoencoderKLWan" : "WanVAE_";
  out[diffusers ? "base_dim" : "dim"] = base;
  if (two) out[diffusers ? "decoder_base_dim" : "dec_dim"] = size("decoder.head.2.weight", 1);
  out["z_dim"] = channels;
  const std::pair<const char*, Json> kAlike[] = {{"dim_mult", {1, 2, 4, 4}},
                                                 {"num_res_blocks", blocks},
                                                 {"attn_scales", Json::array()},
                                                 {"temperal_downsample", {false, true, true}},
                                                 {"dropout", 0.0}};
  for (const auto& [key, usual] : kAlike) out[key] = given.get<Json>(key, key, usual);
  out[diffusers ? "latents_mean" : "mean"] = mean;
  out[diffusers ? "latents_std" : "std"] = deviation;
  if (diffusers && two)
    out.update(Json{{"is_residual", true},
                    {"in_channels", size("encoder.conv1.weight", 1)},
                    {"out_channels", size("decoder.head.2.weight", 0)},
                    {"patch_size", 2},
                    {"scale_factor_spatial", 16},
                    {"scale_factor_temporal", 4}});
  return out;
}

/// The names of an autoencoder with another number of residual blocks than the released ones.
const ForeignNames& names_for(bool two, int64_t blocks) {
  static std::mutex lock;
  static std::map<std::pair<bool, int64_t>, std::unique_ptr<const ForeignNames>> known;
  const std::lock_guard<std::mutex> guard(lock);
  auto& names = known[{two, blocks}];
  if (!names)
    names = std::make_unique<const ForeignNames>(
        ForeignNames{.diffusers = two ? wan22_vae_names(blocks) : wan21_vae_names(blocks)});
  return *names;
}

void take_blocks(const Shapes& official, Identity& identity) {
  const int64_t blocks = wan_vae_res_blocks([&](const std::string& name) { return official.contains(name); });
  if (blocks != kWanVaeResBlocks) identity.names = &names_for(identity.variant == "2.2", blocks);
}

WeightForm form_of(const std::string& version, std::vector<std::string> marks, const KeyMap& names) {
  return {.kind = ModelKind::vae,
          .title = "Wan autoencoders",
          .model = "wan" + version + "-vae",
          .variant = version,
          .marks = std::move(marks),
          .names = {.diffusers = names},  // ComfyUI takes the official ones
          .refine = take_blocks,
          .config = config_json,
          .config_marks = {"mean", "latents_mean", "z_dim"}};
}

}  // namespace

std::vector<WeightForm> weight_forms() {
  return {form_of("2.1",
                  {"encoder.downsamples.0.residual.2.weight", "decoder.upsamples.0.residual.2.weight", "conv2.weight"},
                  wan21_vae_names()),
          form_of("2.2",
                  {"encoder.downsamples.0.downsamples.0.residual.2.weight",
                   "decoder.upsamples.0.upsamples.0.residual.2.weight", "conv2.weight"},
                  wan22_vae_names())};
}

}  // namespace tessera::models::wan_vae
