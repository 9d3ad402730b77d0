#pragma once
// Makes the video DC-AE of Open-Sora 2.0 from a weight file, and checks that it is complete.
//
//   AutoencoderMake row = dc_ae_video::autoencoder();
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::dc_ae_video {

AutoencoderMake autoencoder();

}  // namespace tessera::models::dc_ae_video
