#include "tessera/models/wan/family.h"

#include "tessera/base/check.h"
#include "tessera/models/common/unknown.h"
#include "tessera/models/wan/s2v.h"
#include "tessera/models/wan/spec.h"
#include "tessera/models/wan/weight_form.h"

namespace tessera::models::wan {

namespace {

std::vector<std::string> preset_names() {
  std::vector<std::string> all = names_of(presets());
  for (const auto& [name, config] : s2v_presets()) all.push_back(name);
  return all;
}

std::unique_ptr<net::Denoiser> from_preset(const std::string& preset) {
  for (const auto& [name, config] : s2v_presets())
    if (name == preset) return std::make_unique<S2v>(config);
  for (const auto& [name, config] : presets())
    if (name == preset) return std::make_unique<Wan>(config);
  unknown_name("model.preset", preset, preset_names());
}

std::unique_ptr<net::Denoiser> from_json(const std::string& json, const std::string& file, const Shapes& weights) {
  if (is_s2v_config(json) || weights.count("casual_audio_encoder.weights"))
    return std::make_unique<S2v>(parse_s2v_config(json, file));
  return std::make_unique<Wan>(parse_config(json, file, weights));
}

}  // namespace

Family family() {
  return {.name = "wan",
          .presets = preset_names,
          .from_preset = from_preset,
          .from_json = from_json,
          .classes = {"Wan"},
          .weights = {weight_form()},
          .pipeline_files = pipeline_files,
          .cases = {s2v_case(), fun_case()}};
}

}  // namespace tessera::models::wan
