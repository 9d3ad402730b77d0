#pragma once
// The registry's row of the Gemma 2 text encoder.
//
//   TextEncoderMake row = gemma2::text_encoder();
#include "tessera/models/common/family.h"

namespace tessera::models::gemma2 {

TextEncoderMake text_encoder();

}  // namespace tessera::models::gemma2
