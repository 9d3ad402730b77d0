#pragma once
// From hidden states at 50 a second to the audio rows that a speech-to-video denoiser takes.
//
//   Tensor steady = to_rate(at::stack(states));                  // [layers, T, dim] -> [layers, T * 30 / 50, dim]
//   Tensor rows = pick_rows(steady, 16, 80);                     // row k: the one nearest to k / 16 seconds
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::models {

inline constexpr double kStateRate = 50;   ///< hidden states a second
inline constexpr double kSteadyRate = 30;  ///< rows a second after resampling, from which rows are picked

/// Linear interpolation over time, end to end. states [layers, T, dim].
at::Tensor to_rate(const at::Tensor& states, double from = kStateRate, double to = kSteadyRate);

/// The resampled rows nearest to k / fps seconds, k = 0 .. count - 1; none is after the end of that time span.
std::vector<int64_t> nearest_rows(double fps, int64_t count);

/// These rows, [layers, count, dim * (2 around + 1)], with zeros after the end of the audio. Each row is joined with
/// `around` rows before and after it, int(30 / fps) apart; beyond its ends the audio's first or last row is repeated.
at::Tensor pick_rows(const at::Tensor& steady, double fps, int64_t count, int64_t around = 0);

/// The number of clips of `frames` frames that the reference makes of resampled rows: one more than fit whole.
int64_t clips_of(int64_t steady_rows, double fps, int64_t frames);

}  // namespace tessera::models
