#pragma once
// The registry's row of CLIP's text tower.
//
//   TextEncoderMake row = clip_text::text_encoder();
#include "tessera/models/common/family.h"

namespace tessera::models::clip_text {

TextEncoderMake text_encoder();

}  // namespace tessera::models::clip_text
