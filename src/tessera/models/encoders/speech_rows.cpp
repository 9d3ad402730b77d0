#include "tessera/models/encoders/speech_rows.h"

#include <algorithm>
#include <cmath>

namespace tessera::models {

using at::Tensor;

Tensor to_rate(const Tensor& states, double from, double to) {
  const auto length = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(states.size(1)) / from * to));
  return at::upsample_linear1d(states.transpose(1, 2), {length}, /*align_corners=*/true).transpose(1, 2).contiguous();
}

std::vector<int64_t> nearest_rows(double fps, int64_t count) {
  std::vector<int64_t> rows;
  const double seconds = static_cast<double>(count) / fps, step = seconds / static_cast<double>(count);
  const auto last = static_cast<int64_t>(std::ceil(seconds * kSteadyRate)) - 1;
  for (int64_t k = 0; k < count; ++k) {
    // nearbyint rounds ties to the even row
    const auto row = static_cast<int64_t>(std::nearbyint(static_cast<double>(k) * step * kSteadyRate));
    rows.push_back(std::min(row, last));
  }
  return rows;
}

Tensor pick_rows(const Tensor& steady, double fps, int64_t count, int64_t around) {
  const int64_t known = steady.size(1), stride = std::max<int64_t>(1, static_cast<int64_t>(kSteadyRate / fps));
  const int64_t width = 2 * around + 1;
  const std::vector<int64_t> rows = nearest_rows(fps, count);
  std::vector<int64_t> picked;
  int64_t found_rows = 0;  // rows before the end of the audio
  for (const int64_t row : rows) {
    if (row >= known) break;
    ++found_rows;
    for (int64_t i = -around; i <= around; ++i) picked.push_back(std::clamp<int64_t>(row + i * stride, 0, known - 1));
  }
  const Tensor found = steady.index_select(1, at::tensor(picked, at::kLong));
  return at::constant_pad_nd(found.view({steady.size(0), found_rows, width * steady.size(2)}),
                             {0, 0, 0, count - found_rows});
}

int64_t clips_of(int64_t steady_rows, double fps, int64_t frames) {
  return static_cast<int64_t>(static_cast<double>(steady_rows) / (static_cast<double>(frames) * (kSteadyRate / fps))) +
         1;
}

}  // namespace tessera::models
