#pragma once
// Gemma 2 as files: how its tensors are recognised, and its config.json.
//
//   WeightForm form = gemma2::weight_form();
#include "tessera/models/common/weight_form.h"

namespace tessera::models::gemma2 {

WeightForm weight_form();

}  // namespace tessera::models::gemma2
