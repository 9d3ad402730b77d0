#pragma once
// UMT5's row of the registry, and its golden cases: kind "umt5".
//
//   const TextEncoderMake row = umt5::text_encoder();
#include "tessera/models/common/family.h"

namespace tessera::models::umt5 {

TextEncoderMake text_encoder();
/// T5 1.1, whose layers share a table of positions.
TextEncoderMake t5_text_encoder();

}  // namespace tessera::models::umt5
