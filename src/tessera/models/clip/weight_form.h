#pragma once
// CLIP's image tower as files: how its tensors are recognised, and its config.json.
//
//   WeightForm form = clip::weight_form();
#include "tessera/models/common/weight_form.h"

namespace tessera::models::clip {

WeightForm weight_form();

}  // namespace tessera::models::clip
