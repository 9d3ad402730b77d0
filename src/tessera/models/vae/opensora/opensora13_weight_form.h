#pragma once
// Open-Sora 1.3's autoencoder as files: how it is known, and its config.json.
//
//   const WeightForm form = opensora13_vae::weight_form();
#include "tessera/models/common/weight_form.h"

namespace tessera::models::opensora13_vae {

WeightForm weight_form();

}  // namespace tessera::models::opensora13_vae
