#pragma once
// The spec of a unit of a text encoder: encoders are always frozen, so no parameter has a gradient.
//
//   plan::UnitSpec spec = frozen_unit("norm", "norm", "", {{"norm.weight", {dim}}});
#include <string>
#include <utility>
#include <vector>

#include "tessera/plan/unit_spec.h"

namespace tessera::models {

/// Parameters are called prefix + site, in the order of use.
plan::UnitSpec frozen_unit(std::string name, std::string kind, const std::string& prefix,
                           const std::vector<std::pair<std::string, std::vector<int64_t>>>& params);

}  // namespace tessera::models
