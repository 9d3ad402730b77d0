#pragma once
// HunyuanVideo's autoencoder as files: how it is known, and its config.json.
//
//   const WeightForm form = hunyuan_vae::weight_form();
#include "tessera/models/common/weight_form.h"

namespace tessera::models::hunyuan_vae {

WeightForm weight_form();

}  // namespace tessera::models::hunyuan_vae
