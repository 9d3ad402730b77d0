#pragma once
// UMT5 as files: how its tensors are recognised, and its config.json.
//
//   WeightForm form = umt5::weight_form();
#include "tessera/models/common/weight_form.h"

namespace tessera::models::umt5 {

WeightForm weight_form();
WeightForm t5_weight_form();

}  // namespace tessera::models::umt5
