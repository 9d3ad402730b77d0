#pragma once
// Which shape a clip is trained in where buckets take shares of the clips, as Open-Sora's trainers draw it: from the
// largest size down, in each from the longest number of frames down.
//
//   const auto drawn = draw_bucket(sizes, {.height = 1080, .width = 1920, .frames = 75}, DrawStyle::shares, next);
//   if (drawn) sizes[drawn->size].lengths[drawn->length].frames;                    // else the clip is left out
//
// A clip is large enough for a size from 0.8 of its area on. A length is passed over with the probability 1 - keep; the
// first that is not takes the clip with the probability `take`, and else the next smaller size has its turn. Pictures have
// lengths of one frame alone, videos the others.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/buckets.h"

namespace tessera::data {

struct DrawnLength {
  int64_t frames = 1;
  double take = 1;                  ///< share of the clips that come to it
  std::optional<double> keep = {};  ///< share for which these frames are not passed over; empty: all, without a draw
};
struct DrawnSize {
  int64_t area = 0;                  ///< pixels
  std::vector<DrawnLength> lengths;  ///< longest first
  int level = 0;                     ///< of its buckets
};

/// What differs between its versions and here: which comparisons include their ends, and that 1.x wants more frames than
/// a bucket has.
enum class DrawStyle {
  shares,       ///< here, and in 2.0, whose second probability is that to pass over
  more_frames,  ///< 1.2
};

struct Drawn {
  size_t size = 0, length = 0;
};
/// `sizes` largest first. `next` gives the numbers, uniform in 0..1, of a clip at a length of a size, only where one is
/// needed.
std::optional<Drawn> draw_bucket(const std::vector<DrawnSize>& sizes, const ClipSize& clip, DrawStyle style,
                                 const std::function<double(Drawn)>& next);

/// The buckets as sizes and lengths.
std::vector<DrawnSize> drawn_sizes(const std::vector<Bucket>& buckets);

/// Of the buckets of one entry of data.buckets, the one of the nearest ratio that draws by (seed, name of the clip) find.
/// Bucket -1 without a problem: the draws leave the clip out.
BucketChoice choose_drawn(const std::vector<Bucket>& buckets, const ClipSize& clip, double max_crop, uint64_t seed,
                          const std::string& name);

}  // namespace tessera::data
