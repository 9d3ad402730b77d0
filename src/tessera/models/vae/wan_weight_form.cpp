#include "tessera/models/vae/wan_weight_form.h"

#include <map>
#include <memory>
#include <mutex>

#include "tessera/models/vae/wan_names.h"
#include "tessera/models/vae/wan_statistics.h"

namespace tessera::models::wan_vae {

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
