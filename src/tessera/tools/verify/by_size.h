#pragma once
// Checks for the kinds of golden cases whose objective depends on a sample's size (Open-Sora's): draws of timesteps,
// schedules, shifts, and losses of recorded latents by a recorded model.
//
//   file.compare("out.v2.t", sigmas_of(by_size(shift), file.tensor("in.v2.normal")), context.bound("out"));
#include <array>

#include "tessera/diffusion/flow.h"
#include "tessera/models/common/patches.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

inline constexpr models::Patch kSizePatch = {1, 2, 2};  // of 2.0's latents

/// A bound by the largest expected magnitude.
std::function<double(double)> relative(double bound);
at::Tensor doubles(const std::vector<double>& values);

/// Options of 2.0's objective with a known shift; `bf16`: computed in it.
diffusion::Options by_size(double shift, bool bf16 = false);
/// Sigmas of normal draws, fp32.
at::Tensor sigmas_of(const diffusion::Options& options, const at::Tensor& normal);
/// Sigmas of 2.0's sampler.
std::vector<double> size_schedule(int steps, double shift);

/// diffusion-pipe's table of timesteps, 0 to 1, cut to the window of its settings, for latents of that height and width.
std::vector<double> pipe_timesteps(const Settings& settings, int64_t height, int64_t width);

/// The distance of a number of bf16 to the next larger one, at each value.
at::Tensor bf16_steps(const at::Tensor& values);
/// Values of bf16 are equal, but for one of its steps where `exact` lies between two of them.
void compare_rounded(CaseFile& file, const std::string& name, const at::Tensor& computed, const at::Tensor& exact);

using VideoSize = std::array<int64_t, 3>;  ///< height, width and frames, in pixels
std::vector<VideoSize> video_sizes(const Settings& rows);
/// The shift of 1.2, whose autoencoder makes five latent frames of 17, and of 1.3, which counts those that begin no piece
/// and scales those of videos alone.
double shift_of_first(const VideoSize& size, double scale);
double shift_of_second(const VideoSize& size, double scale);
/// Timesteps for each row of sizes and each t, both in 0..1000.
at::Tensor area_timesteps(const std::vector<VideoSize>& sizes, const at::Tensor& t, double scale,
                          double (*shift_of)(const VideoSize& size, double scale) = shift_of_first);

/// The loss of a sample's rows and its gradient times `scale`; `weights` of its frames, empty: they count alike.
double loss_of_rows(const at::Tensor& prediction, const at::Tensor& target, double scale, const at::Tensor& gradient,
                    const std::vector<double>& weights);

/// Samples of 1.x and what its recorded model adds to 0.3 sin x + 0.1 t. Tensors begin with N.
struct AreaSamples {
  at::Tensor x0, noise, t;
  at::Tensor text;                   ///< a number a sample
  at::Tensor beside = {};            ///< of given frames, [N, C, F, h, w]
  at::Tensor mask = {};              ///< [N, F]: frames of 0 are given without noise, and do not count
  at::Tensor wanted = {};            ///< the latents of the target, where they are not x0
  std::vector<double> weights = {};  ///< of frames, where there is no mask
};
struct AreaLoss {
  at::Tensor noisy, losses;
};
AreaLoss area_loss(const AreaSamples& samples);

}  // namespace tessera::tools
