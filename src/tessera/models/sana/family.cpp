#include "tessera/models/sana/family.h"

#include "tessera/models/common/unknown.h"
#include "tessera/models/sana/spec.h"
#include "tessera/models/sana/weight_form.h"

namespace tessera::models::sana {

namespace {

std::vector<std::string> preset_names() { return names_of(presets()); }

std::unique_ptr<net::Denoiser> from_preset(const std::string& preset) {
  return std::make_unique<Sana>(find_named(presets(), "model.preset", preset));
}

std::unique_ptr<net::Denoiser> from_json(const std::string& json, const std::string& file, const Shapes&) {
  return std::make_unique<Sana>(parse_config(json, file));
}

}  // namespace

Family family() {
  return {.name = "sana",
          .presets = preset_names,
          .from_preset = from_preset,
          .from_json = from_json,
          .classes = {"Sana"},
          .weights = weight_forms(),
          .pipeline_files = pipeline_files,
          .cases = sana_cases(),
          .sampling_cases = {"sampling_sana"}};
}

}  // namespace tessera::models::sana
