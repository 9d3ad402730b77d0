#pragma once
// The files of MMDiT denoisers: released, Flux's and diffusers' names, and config.json.
//
//   Family{.weights = {weight_form()}};
#include "tessera/models/common/weight_form.h"

namespace tessera::models::opensora {

WeightForm weight_form();

}  // namespace tessera::models::opensora
