#pragma once
// Makes one of Wan's autoencoders from a weight file: detects its version and naming, and checks that it is complete.
//
//   AutoencoderMake row = wan_vae::autoencoder();
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::wan_vae {

AutoencoderMake autoencoder();

}  // namespace tessera::models::wan_vae
