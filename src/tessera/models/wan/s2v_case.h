#pragma once
// Golden cases of kind "dit_s2v": the case has image and clip as two tensors, the denoiser takes them as one latent.
//
//   const DenoiserCase row = s2v_case();
#include "tessera/models/common/golden_case.h"

namespace tessera::models::wan {

DenoiserCase s2v_case();

}  // namespace tessera::models::wan
