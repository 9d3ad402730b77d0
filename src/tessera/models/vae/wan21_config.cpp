#include "tessera/models/vae/wan21_config.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/models/config_reader.h"

namespace tessera::models::wan21 {

int64_t Config::time_stride() const {
  return int64_t{1} << std::count(temporal_downsample.begin(), temporal_downsample.end(), true);
}

Config parse_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  for (const char* key : {"dec_dim", "decoder_base_dim"})
    json.expect_absent(key, "this is Wan 2.2's autoencoder, supported is Wan 2.1's");
  json.expect("is_residual", false);
  json.expect("patch_size", 1);
  json.expect("in_channels", 3);
  json.expect("out_channels", 3);
  json.expect("attn_scales", nlohmann::json::array());
  const bool diffusers = json.has("base_dim");
  Config c;
  c.dim = json.size(diffusers ? "base_dim" : "dim", c.dim);
  c.z_dim = json.size("z_dim", c.z_dim);
  c.dim_mult = json.sizes("dim_mult", c.dim_mult);
  c.num_res_blocks = json.size("num_res_blocks", c.num_res_blocks);
  c.temporal_downsample = json.flags("temperal_downsample", c.temporal_downsample);  // the files spell it so
  c.mean = json.reals(diffusers ? "latents_mean" : "mean", c.mean);
  c.std = json.reals(diffusers ? "latents_std" : "std", c.std);
  if (c.levels() > 8 || c.temporal_downsample.size() + 1 != c.dim_mult.size())
    json.fail("temperal_downsample has " + std::to_string(c.temporal_downsample.size()) + " entries, dim_mult " +
              std::to_string(c.dim_mult.size()) + ": expected one less, between neighbouring levels");
  const auto channels = static_cast<size_t>(c.z_dim);
  if (c.mean.size() != channels || c.std.size() != channels)
    json.fail("mean and std have " + std::to_string(c.mean.size()) + " and " + std::to_string(c.std.size()) +
              " values, the latent has z_dim = " + std::to_string(c.z_dim) + " channels");
  if (std::any_of(c.std.begin(), c.std.end(), [](double s) { return s <= 0; }))
    json.fail("std has a value that is not positive: latents are divided by it");
  for (size_t i = 1; i < c.dim_mult.size(); ++i)  // each step up halves the channels of the level below
    if (c.dim * c.dim_mult[i] % 2 != 0) json.fail("dim * dim_mult must be even: each step up halves the channels");
  return c;
}

Config config_of_weights(const std::function<std::vector<int64_t>(const std::string&)>& shape,
                         const std::string& file) {
  const auto refuse = [&](const std::string& what) {
    throw UserError(Exit::input, "models.vae", file + ": " + what,
                    "give the folder that has its config.json, or Wan2.1_VAE.pth");
  };
  if (!shape("encoder.downsamples.0.downsamples.0.residual.2.weight").empty())
    refuse("these are weights of Wan 2.2's autoencoder, supported is Wan 2.1's");
  const std::vector<int64_t> first = shape("encoder.conv1.weight"), last = shape("conv2.weight");
  if (first.size() != 5 || last.size() != 5)
    refuse("there is no config.json beside it, and encoder.conv1.weight and conv2.weight do not tell the sizes");
  Config c;
  c.dim = first[0];
  c.z_dim = last[0];
  if (c.z_dim != static_cast<int64_t>(c.mean.size()))
    refuse("latents have " + std::to_string(c.z_dim) + " channels, and only for " + std::to_string(c.mean.size()) +
           " is the scaling known without a config.json");
  return c;
}

}  // namespace tessera::models::wan21
