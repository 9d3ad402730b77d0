#pragma once
// Makes Open-Sora 1.2's autoencoder from a weight file, and checks that it is complete.
//
//   AutoencoderMake row = opensora12_vae::autoencoder();
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::opensora12_vae {

AutoencoderMake autoencoder();

}  // namespace tessera::models::opensora12_vae
