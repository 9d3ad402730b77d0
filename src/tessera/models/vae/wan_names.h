#pragma once
// Names of the Wan autoencoders' tensors in diffusers' AutoencoderKLWan.
//
//   to_foreign(wan21_vae_names(), "encoder.middle.0.residual.2.weight");   // encoder.mid_block.resnets.0.conv1.weight
#include "tessera/models/common/names.h"

namespace tessera::models {

/// Wan 2.1 (16 channels): the stages of encoder and decoder are one list, which diffusers divides into blocks of the
/// decoder.
const KeyMap& wan21_vae_names();
/// Wan 2.2 (48 channels): lists within lists in both.
const KeyMap& wan22_vae_names();

}  // namespace tessera::models
