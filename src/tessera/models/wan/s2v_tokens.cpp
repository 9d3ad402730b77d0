#include "tessera/models/wan/s2v_tokens.h"

namespace tessera::models::wan {

using at::Tensor;

namespace {

/// `count` positions spread evenly from `first` to `last`, rounded towards zero: a coarse token has the position of one
/// of the fine tokens that it covers.
std::vector<int64_t> spread(int64_t first, int64_t last, int64_t count) {
  std::vector<int64_t> positions;
  const double step = count > 1 ? static_cast<double>(last - first) / static_cast<double>(count - 1) : 0;
  for (int64_t i = 0; i < count; ++i)
    positions.push_back(i > 0 && i + 1 == count
                            ? last
                            : static_cast<int64_t>(static_cast<double>(first) + static_cast<double>(i) * step));
  return positions;
}

}  // namespace

Grid reference_grid(int64_t h, int64_t w) {
  Grid grid = clip_grid(1, h, w);
  grid.times = {kReferenceTime};
  return grid;
}

std::vector<Grid> motion_grids(int64_t h, int64_t w) {
  std::vector<Grid> grids;
  const Patch& finest = kMotionBuckets.front().kernel;
  for (const MotionBucket& bucket : kMotionBuckets) {
    // From the oldest to the newest frame of the bucket; the magnitude is what is rounded.
    std::vector<int64_t> times = spread(bucket.end, bucket.begin + 1, (bucket.end - bucket.begin) / bucket.kernel[0]);
    for (int64_t& time : times) time = -time;
    grids.push_back({std::move(times), spread(0, h - 1, h * finest[1] / bucket.kernel[1]),
                     spread(0, w - 1, w * finest[2] / bucket.kernel[2])});
  }
  return grids;
}

Tensor padded_motion(const Tensor& motion) {
  const int64_t missing = kMotionFrames - motion.size(1);
  if (missing <= 0) return motion.slice(1, -missing);
  return at::constant_pad_nd(motion, {0, 0, 0, 0, missing, 0});
}

Tensor bucket_frames(const Tensor& padded, const MotionBucket& bucket) {
  return padded.slice(1, kMotionFrames - bucket.end, kMotionFrames - bucket.begin);
}

}  // namespace tessera::models::wan
