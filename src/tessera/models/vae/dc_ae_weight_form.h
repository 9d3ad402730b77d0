#pragma once
// DC-AE as files: how it is known under both namings, and its config.json.
//
//   for (const WeightForm& form : dc_ae::weight_forms()) ...
#include "tessera/models/common/weight_form.h"

namespace tessera::models::dc_ae {

std::vector<WeightForm> weight_forms();  ///< diffusers' names, efficientvit's

}  // namespace tessera::models::dc_ae
