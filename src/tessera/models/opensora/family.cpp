#include "tessera/models/opensora/family.h"

#include "tessera/models/common/unknown.h"
#include "tessera/models/opensora/spec.h"
#include "tessera/models/opensora/weight_form.h"

namespace tessera::models::opensora {

namespace {

std::vector<std::string> preset_names() { return names_of(presets()); }

std::unique_ptr<net::Denoiser> from_preset(const std::string& preset) {
  return std::make_unique<OpenSora>(find_named(presets(), "model.preset", preset));
}

std::unique_ptr<net::Denoiser> from_json(const std::string& json, const std::string& file, const Shapes&) {
  return std::make_unique<OpenSora>(parse_config(json, file));
}

}  // namespace

Family family() {
  return {.name = "opensora",
          .presets = preset_names,
          .from_preset = from_preset,
          .from_json = from_json,
          .classes = {"MMDiT", "FluxTransformer"},
          .weights = {weight_form()},
          .cases = opensora_cases()};
}

}  // namespace tessera::models::opensora
