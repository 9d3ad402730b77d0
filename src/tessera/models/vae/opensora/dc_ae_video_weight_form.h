#pragma once
// The video DC-AE as files: how it is known, and its config.json.
//
//   const WeightForm form = dc_ae_video::weight_form();
#include "tessera/models/common/weight_form.h"

namespace tessera::models::dc_ae_video {

WeightForm weight_form();

}  // namespace tessera::models::dc_ae_video
