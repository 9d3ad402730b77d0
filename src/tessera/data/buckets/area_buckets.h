#pragma once
// Shapes of about one area at many aspect ratios, as other trainers compute them.
//
//   area_buckets("AREA_832x480", 33);           // 33x480x832, 33x832x480, 33x512x768, ...
//   area_buckets("RATIOS_512_0.5_2_7", 1);      // 1x512x512, 1x720x368, ...
#include <string>
#include <vector>

#include "tessera/data/buckets/buckets.h"

namespace tessera::data {

/// Whether the text begins as one of the two forms does.
bool names_area(const std::string& text);

/// AREA_WIDTHxHEIGHT: every multiple of 16 from half the side of the square of this area up to that side, beside the
/// longest multiple of 16 that keeps the area, lying and upright (musubi-tuner, dataset/bucket.py, BucketSelector); the
/// shape nearest to the named one comes first. RATIOS_SIDE_LEAST_MOST_COUNT: so many ratios of width to height, evenly
/// spaced in their logarithm, at the area of a square of SIDE, sides rounded to 16 (diffusion-pipe, utils/dataset.py);
/// the one nearest to a square comes first. Samples have the first shape. Throws UserError (usage) showing the text.
std::vector<Bucket> area_buckets(const std::string& text, int64_t frames);

}  // namespace tessera::data
