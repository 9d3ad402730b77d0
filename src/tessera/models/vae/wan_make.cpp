#include "tessera/models/vae/wan_make.h"

#include <algorithm>
#include <map>

#include "tessera/base/check.h"
#include "tessera/models/vae/stored_weights.h"
#include "tessera/models/vae/wan.h"
#include "tessera/models/vae/wan_names.h"
#include "tessera/models/vae/wan_weight_form.h"

namespace tessera::models::wan_vae {

namespace {

const std::vector<std::string> kVaeNamings = {"official", "diffusers"};

/// Whether the names are those of Wan 2.2's autoencoder, whose levels are lists within a list.
bool is_22(const WeightSource& weights) {
  constexpr std::string_view kMarks[] = {"encoder.downsamples.0.downsamples.0.residual.2.weight",
                                         "encoder.down_blocks.0.resnets.0.conv1.weight"};
  return std::any_of(weights.names.begin(), weights.names.end(), [&](const std::string& name) {
    return std::any_of(std::begin(kMarks), std::end(kMarks),
                       [&](std::string_view mark) { return name.ends_with(mark); });
  });
}

/// Official names to those in the file.
class Stored {
 public:
  /// Names depend on the levels and their blocks alone, so `config` need not have the true widths yet.
  Stored(const Config& config, const WeightSource& weights)
      : map_(config.residual ? wan22_vae_names(config.num_res_blocks) : wan21_vae_names(config.num_res_blocks)) {
    std::vector<std::string> official;
    for (const auto& parameter : parameters(config)) official.push_back(parameter.name);
    const auto foreign = [this](const std::string& name, const std::string& naming) { return translate(name, naming); };
    naming_ = detect_naming(official, foreign, kVaeNamings, weights.names, weights.file);
  }
  std::string operator()(const std::string& official) const {
    return naming_.prefix + translate(official, naming_.naming);
  }

 private:
  std::string translate(const std::string& name, const std::string& naming) const {
    return naming == "official" ? name : to_foreign(map_, name);
  }
  const KeyMap& map_;
  Naming naming_;
};

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const bool sized = !config_text.empty(), two = is_22(weights);
  Config config = sized ? parse_config(config_text, config_file) : two ? wan22_config() : Config{};
  check_input(config.residual == two, "models.vae",
              weights.file + ": these are weights of Wan " + (two ? "2.2" : "2.1") + "'s autoencoder, " + config_file +
                  " is that of Wan " + config.version() + "'s",
              "put the config.json of these weights beside them, or none");
  const int64_t blocks = wan_vae_res_blocks([&](const std::string& name) { return has_tensor(weights, name); });
  if (!sized) config.num_res_blocks = blocks;
  const Stored stored(config, weights);
  if (!sized) {
    config = config_of_weights(
        two,
        [&](const std::string& name) {
          const std::string there = stored(name);
          return has_tensor(weights, there) ? weights.shape(there) : std::vector<int64_t>{};
        },
        weights.file);
    config.num_res_blocks = blocks;
  }

  const std::string hint = sized ? "does " + config_file + " belong to these weights?"
                                 : "these are not weights of Wan " + std::string(config.version()) + "'s autoencoder";
  for (const auto& parameter : parameters(config))
    expect_tensor(weights, stored(parameter.name), parameter.shape, hint);
  const auto read = [stored, values = weights.read](const std::string& official) { return values(stored(official)); };
  return std::make_unique<WanVae>(std::move(config), read, tiling);
}

/// A quarter, in whole cells of 16 or 8 pixels.
int64_t usual_overlap(int64_t tile) { return tile >= 64 ? tile / 64 * 16 : tile / 32 * 8; }

std::unique_ptr<VideoVae> released(const Config& config, const Tiling& tiling) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const Parameter& parameter : parameters(config)) shapes[parameter.name] = parameter.shape;
  const auto read = [shapes](const std::string& name) { return random_tensor(name, shapes.at(name)); };
  return std::make_unique<WanVae>(config, read, tiling);
}

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = weight_forms(),
          .make = make,
          .usual_overlap = usual_overlap,
          .presets = {{"wan2.1-vae", [](const Tiling& tiling) { return released({}, tiling); }},
                      {"wan2.2-vae", [](const Tiling& tiling) { return released(wan22_config(), tiling); }}}};
}

}  // namespace tessera::models::wan_vae
