#pragma once
// From a file of weights to one of Wan's autoencoders: which it is, how its tensors are called, whether all are there.
//
//   AutoencoderMake row = wan_vae::autoencoder();
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::wan_vae {

AutoencoderMake autoencoder();

}  // namespace tessera::models::wan_vae
