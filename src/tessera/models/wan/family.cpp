#include "tessera/models/wan/family.h"

#include "tessera/base/check.h"
#include "tessera/models/common/unknown.h"
#include "tessera/models/wan/animate.h"
#include "tessera/models/wan/s2v.h"
#include "tessera/models/wan/spec.h"
#include "tessera/models/wan/vace.h"
#include "tessera/models/wan/weight_form.h"

namespace tessera::models::wan {

namespace {

std::vector<std::string> preset_names() {
  std::vector<std::string> all = names_of(presets());
  for (const auto& [name, config] : s2v_presets()) all.push_back(name);
  for (const auto& [name, config] : vace_presets()) all.push_back(name);
  for (const auto& [name, config] : animate_presets()) all.push_back(name);
  return all;
}

std::unique_ptr<net::Denoiser> from_preset(const std::string& preset) {
  for (const auto& [name, config] : s2v_presets())
    if (name == preset) return std::make_unique<S2v>(config);
  for (const auto& [name, config] : vace_presets())
    if (name == preset) return std::make_unique<Vace>(config);
  for (const auto& [name, config] : animate_presets())
    if (name == preset) return std::make_unique<Animate>(config);
  for (const auto& [name, config] : presets())
    if (name == preset) return std::make_unique<Wan>(config);
  unknown_name("model.preset", preset, preset_names());
}

std::unique_ptr<net::Denoiser> from_json(const std::string& json, const std::string& file, const Shapes& weights) {
  if (is_s2v_config(json) || weights.count("casual_audio_encoder.weights"))
    return std::make_unique<S2v>(parse_s2v_config(json, file));
  if (is_vace_config(json) || weights.count("vace_patch_embedding.weight"))
    return std::make_unique<Vace>(parse_vace_config(json, file));
  if (is_animate_config(json) || weights.count("motion_encoder.dec.direction.weight"))
    return std::make_unique<Animate>(parse_animate_config(json, file));
  return std::make_unique<Wan>(parse_config(json, file, weights));
}

std::vector<InputCase> input_cases() {
  std::vector<InputCase> all = vace_input_cases();
  for (InputCase& row : animate_input_cases()) all.push_back(std::move(row));
  return all;
}

}  // namespace

std::string of_sample(const std::string& name, size_t sample) { return name + "." + std::to_string(sample); }

NamedTensors outputs_of_samples(const std::vector<at::Tensor>& predictions) {
  NamedTensors named;
  for (size_t i = 0; i < predictions.size(); ++i) named.emplace_back(of_sample("out", i), predictions[i]);
  return named;
}

Family family() {
  return {.name = "wan",
          .presets = preset_names,
          .from_preset = from_preset,
          .from_json = from_json,
          .classes = {"Wan", "VaceWan"},
          .weights = {weight_form()},
          .pipeline_files = pipeline_files,
          .cases = {s2v_case(), vace_case(), animate_case(), fun_case()},
          .input_cases = input_cases()};
}

}  // namespace tessera::models::wan
