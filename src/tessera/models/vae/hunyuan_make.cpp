#include "tessera/models/vae/hunyuan_make.h"

#include <map>

#include "tessera/models/vae/hunyuan.h"
#include "tessera/models/vae/hunyuan_weight_form.h"
#include "tessera/models/vae/stored_weights.h"

namespace tessera::models::hunyuan_vae {

namespace {

Tiling with_shared_frames(Tiling tiling) {
  if (tiling.shared_frames == Tiling::kUsual) tiling.shared_frames = tiling.frames / 4 / kTimeStride * kTimeStride;
  return tiling;
}

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const auto same = [](const std::string& name, const std::string&) { return name; };
  const std::string prefix = detect_naming({"encoder.conv_in.conv.weight", "post_quant_conv.weight"}, same,
                                           {"diffusers"}, weights.names, weights.file)
                                 .prefix;
  Config config = config_of_weights(
      [&](const std::string& name) {
        return has_tensor(weights, prefix + name) ? weights.shape(prefix + name) : std::vector<int64_t>{};
      },
      weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  check_groups(config, weights.file);
  for (const Parameter& parameter : parameters(config))
    expect_tensor(weights, prefix + parameter.name, parameter.shape,
                  "these are not weights of HunyuanVideo's autoencoder");
  return std::make_unique<HunyuanVae>(
      std::move(config), [prefix, read = weights.read](const std::string& name) { return read(prefix + name); },
      with_shared_frames(tiling));
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const Parameter& parameter : parameters({})) shapes[parameter.name] = parameter.shape;
  const auto read = [shapes](const std::string& name) { return random_tensor(name, shapes.at(name)); };
  return std::make_unique<HunyuanVae>(Config{}, read, with_shared_frames(tiling));
}

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = {weight_form()},
          .make = make,
          .usual_overlap = usual_overlap,
          .clip_cases = {"hunyuan_vae", "hunyuan_vae_tiled", "opensora_vae_tiling"},
          .presets = {{"hunyuan-vae", released}}};
}

}  // namespace tessera::models::hunyuan_vae
