#pragma once
// The rays of a moving camera as a denoiser takes them (Plücker coordinates: Sitzmann et al. 2021; CameraCtrl: He et al.
// 2024): of each pixel o x d and d, of the camera's place and of its unit direction through the pixel's middle.
//
//   Tensor rows = fold_rays(y_camera, {1, 2, 2}, 8);          // [24, F, 8 H, 8 W] -> [L, 24 * 8 * 8 * 4]
//   fill_rays(rows, camera, {1, 2, 2}, {F, H, W}, 8);         // the same of the camera itself
//
// A camera is [frames, 16]: of each of the clip's frames fx, fy, cx and cy in pixels, then its pose relative to the first
// frame's, 3 x 4 by rows (data/camera.h). VideoX-Fun's cross product takes the frames for the coordinates where a clip has
// three of them; here it is always of the coordinates.
#include "tessera/models/common/patches.h"

namespace tessera::models {

inline constexpr int64_t kCameraNumbers = 16;  ///< of a frame
inline constexpr int64_t kRayChannels = 24;    ///< six numbers of each of the four frames of a latent frame
/// Frames of the clip of a latent.
inline int64_t camera_frames(int64_t latent_frames) { return 4 * (latent_frames - 1) + 1; }

/// [frames, height, width, 6]
at::Tensor camera_rays(const at::Tensor& camera, int64_t height, int64_t width);
/// [frames, H, W, 6] -> [24, F, H, W]: the first frame four times, and the four frames of a latent frame side by side.
at::Tensor rays_by_latent_frame(const at::Tensor& rays);

/// Rays [c, F, s * H, s * W] as rows of a convolution whose kernel and stride are a token of s * s pixels a cell: the
/// channel, then the pixel in its cell, then the cell in its token.
at::Tensor fold_rays(const at::Tensor& rays, const Patch& patch, int64_t scale);
/// And back, of a latent [.., F, H, W].
at::Tensor unfold_rays(const at::Tensor& rows, const Patch& patch, const std::array<int64_t, 3>& latent, int64_t scale);
/// A camera's rays as such rows, which are there. Throws UserError (input) for a camera of another clip.
void fill_rays(const at::Tensor& rows, const at::Tensor& camera, const Patch& patch,
               const std::array<int64_t, 3>& latent, int64_t scale);

}  // namespace tessera::models
