#pragma once
// Makes DC-AE from a weight file of diffusers or efficientvit, and checks that it is complete.
//
//   AutoencoderMake row = dc_ae::autoencoder();
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::dc_ae {

AutoencoderMake autoencoder();

}  // namespace tessera::models::dc_ae
