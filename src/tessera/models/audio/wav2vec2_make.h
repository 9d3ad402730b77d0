#pragma once
// wav2vec 2.0's row of the registry, and its golden cases: kind "wav2vec".
//
//   const AudioEncoderMake row = wav2vec::audio_encoder();
#include "tessera/models/common/family.h"

namespace tessera::models::wav2vec {

AudioEncoderMake audio_encoder();

}  // namespace tessera::models::wav2vec
