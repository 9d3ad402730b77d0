#pragma once
// Names of the Wan autoencoders' tensors in diffusers' AutoencoderKLWan.
//
//   to_foreign(wan21_vae_names(), "encoder.middle.0.residual.2.weight");   // encoder.mid_block.resnets.0.conv1.weight
#include <cstdint>
#include <functional>

#include "tessera/models/common/names.h"

namespace tessera::models {

inline constexpr int64_t kWanVaeResBlocks = 2;  ///< of the released ones

/// Wan 2.1 (16 channels): the stages of encoder and decoder are one list, which diffusers divides into blocks of the
/// decoder.
const KeyMap& wan21_vae_names(int64_t res_blocks = kWanVaeResBlocks);
/// Wan 2.2 (48 channels): lists within lists in both.
const KeyMap& wan22_vae_names(int64_t res_blocks = kWanVaeResBlocks);
/// The residual blocks in a level of the encoder, by the tensors of either naming that there are (those that the released
/// number's map leaves as they are, too).
int64_t wan_vae_res_blocks(const std::function<bool(const std::string&)>& has);

}  // namespace tessera::models
