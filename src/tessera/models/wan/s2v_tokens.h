#pragma once
// Positions of the tokens of a speech-to-video sample: the noisy clip, its reference image, and the frames before the
// clip, which are packed more coarsely the older they are.
//
//   for (const Grid& grid : motion_grids(h, w)) append(grid_rotary(grid, head_dim));
#include <string_view>

#include "tessera/models/common/patches.h"
#include "tessera/models/common/rotary.h"

namespace tessera::models::wan {

/// Latent frames before the clip that share a kernel, counted from the newest.
struct MotionBucket {
  std::string_view site;  ///< of the stem
  Patch kernel;
  int64_t begin, end;  ///< in latent frames: 0 is the newest
};
inline constexpr std::array<MotionBucket, 3> kMotionBuckets = {{{"frame_packer.proj", {1, 2, 2}, 0, 1},
                                                                {"frame_packer.proj_2x", {2, 4, 4}, 1, 3},
                                                                {"frame_packer.proj_4x", {4, 8, 8}, 3, 19}}};
inline constexpr int64_t kMotionFrames = kMotionBuckets.back().end;  ///< latent frames of motion
inline constexpr int64_t kReferenceTime = 30;                        ///< the reference image's position in time

Grid reference_grid(int64_t h, int64_t w);
/// One grid for each bucket, in their order; `h`, `w` in tokens of the clip. Times are negative.
std::vector<Grid> motion_grids(int64_t h, int64_t w);

/// The last kMotionFrames frames of a motion latent [C, M, H, W], with zeros in front of fewer; and the frames of one
/// bucket.
at::Tensor padded_motion(const at::Tensor& motion);
at::Tensor bucket_frames(const at::Tensor& padded, const MotionBucket& bucket);

}  // namespace tessera::models::wan
