#pragma once
// How far two clips are apart.
//
//   double db = psnr(sample, reconstruction);     // above 30: hard to tell apart
#include "tessera/data/video.h"

namespace tessera::data {

/// Peak signal to noise ratio in dB over all pixels of all frames; infinite when equal. Throws UserError (input) when
/// the shapes differ, naming both.
double psnr(const Frames& a, const Frames& b);

}  // namespace tessera::data
