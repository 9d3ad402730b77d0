#include "tessera/models/vae/wan_config.h"

#include <algorithm>

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

}  // namespace tessera::models::wan_vae
