#include "tessera/models/stdit/family.h"

#include "tessera/models/common/unknown.h"
#include "tessera/models/stdit/spec.h"
#include "tessera/models/stdit/weight_form.h"

namespace tessera::models::stdit {

namespace {

std::vector<std::string> preset_names() { return names_of(presets()); }

std::unique_ptr<net::Denoiser> from_preset(const std::string& preset) {
  return std::make_unique<Stdit>(find_named(presets(), "model.preset", preset));
}

std::unique_ptr<net::Denoiser> from_json(const std::string& json, const std::string& file, const Shapes&) {
  return std::make_unique<Stdit>(parse_config(json, file));
}

}  // namespace

Family family() {
  return {.name = "stdit",
          .presets = preset_names,
          .from_preset = from_preset,
          .from_json = from_json,
          .classes = {"STDiT"},
          .weights = weight_forms(),
          .cases = stdit_cases()};
}

}  // namespace tessera::models::stdit
