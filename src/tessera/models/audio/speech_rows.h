#pragma once
// From hidden states at 50 a second to the rows of sound that a speech-to-video denoiser takes.
//
//   Tensor steady = to_rate(at::stack(states));                  // [layers, T, dim] -> [layers, T * 30 / 50, dim]
//   Tensor rows = pick_rows(steady, 16, 80);                     // row k: the one nearest to k / 16 seconds
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::models {

inline constexpr double kStateRate = 50;   ///< hidden states a second
inline constexpr double kSteadyRate = 30;  ///< rows a second that are picked from

/// Linear interpolation over time, end to end. states [layers, T, dim].
at::Tensor to_rate(const at::Tensor& states, double from = kStateRate, double to = kSteadyRate);

/// The steady rows nearest to k / fps seconds, k = 0 .. count - 1, at most as many as `count` rows last.
std::vector<int64_t> nearest_rows(double fps, int64_t count);

/// Those rows [layers, count, dim * (2 around + 1)]; zeros where the sound has ended. `around` rows before and after
/// each come with it, int(30 / fps) apart, the sound's first and last standing in beyond its ends.
at::Tensor pick_rows(const at::Tensor& steady, double fps, int64_t count, int64_t around = 0);

/// Clips of `frames` that the reference makes of so many steady rows: always one more than fit whole.
int64_t clips_of(int64_t steady_rows, double fps, int64_t frames);

}  // namespace tessera::models
