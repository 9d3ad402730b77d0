#pragma once
// Makes HunyuanVideo's autoencoder from a weight file, and checks that it is complete.
//
//   AutoencoderMake row = hunyuan_vae::autoencoder();
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::hunyuan_vae {

AutoencoderMake autoencoder();

}  // namespace tessera::models::hunyuan_vae
