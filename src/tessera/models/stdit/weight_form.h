#pragma once
// The files of STDiT3 denoisers: released names, and config.json.
//
//   Family{.weights = weight_forms()};
#include "tessera/models/common/weight_form.h"

namespace tessera::models::stdit {

std::vector<WeightForm> weight_forms();

}  // namespace tessera::models::stdit
