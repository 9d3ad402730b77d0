#include "tessera/models/text/frozen_unit.h"

namespace tessera::models {

plan::UnitSpec frozen_unit(std::string name, std::string kind, const std::string& prefix,
                           const std::vector<std::pair<std::string, std::vector<int64_t>>>& params) {
  plan::UnitSpec spec{.name = std::move(name), .kind = std::move(kind), .params = {}, .cost = {}};
  for (const auto& [site, shape] : params)
    spec.params.push_back({.name = prefix + site, .shape = shape, .trainable = false});
  return spec;
}

}  // namespace tessera::models
