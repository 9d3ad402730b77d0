#pragma once
// Makes Open-Sora 1.3's autoencoder from a weight file, and checks that it is complete.
//
//   AutoencoderMake row = opensora13_vae::autoencoder();
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::opensora13_vae {

AutoencoderMake autoencoder();

}  // namespace tessera::models::opensora13_vae
