#pragma once
// Wan's autoencoders as files: how they are known, and their config.json.
//
//   for (const WeightForm& form : wan_vae::weight_forms()) ...
#include "tessera/models/common/weight_form.h"

namespace tessera::models::wan_vae {

std::vector<WeightForm> weight_forms();  ///< 2.1, 2.2

}  // namespace tessera::models::wan_vae
