#include "tessera/models/common/rotary.h"

#include <numeric>

namespace tessera::models {

using at::Tensor;

namespace {

std::vector<int64_t> count_up(int64_t count) {
  std::vector<int64_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

/// [positions, share]: position times frequency.
Tensor angles(const std::vector<int64_t>& positions, int64_t share) {
  return at::outer(at::tensor(positions, at::kDouble), rotary_frequencies(share));
}

}  // namespace

Grid clip_grid(int64_t frames, int64_t h, int64_t w) { return {count_up(frames), count_up(h), count_up(w)}; }

std::pair<Tensor, Tensor> grid_rotary(const Grid& grid, int64_t head_dim) {
  const int64_t channels = head_dim / 2, third = channels / 3;
  const auto f = static_cast<int64_t>(grid.times.size()), h = static_cast<int64_t>(grid.rows.size()),
             w = static_cast<int64_t>(grid.columns.size());
  const Tensor time = angles(grid.times, channels - 2 * third).view({f, 1, 1, -1}).expand({f, h, w, -1});
  const Tensor rows = angles(grid.rows, third).view({1, h, 1, -1}).expand({f, h, w, -1});
  const Tensor columns = angles(grid.columns, third).view({1, 1, w, -1}).expand({f, h, w, -1});
  const Tensor all = at::cat({time, rows, columns}, -1).view({f * h * w, channels});
  return {all.cos().to(at::kFloat), all.sin().to(at::kFloat)};
}

Tensor rotary_frequencies(int64_t count) {
  return at::pow(10000.0, -at::arange(count, at::kDouble) / static_cast<double>(count));
}

Tensor timestep_sinusoid(const std::vector<double>& t, int64_t dim) {
  const Tensor angles = at::outer(at::tensor(t, at::kDouble), rotary_frequencies(dim / 2));  // [R, dim / 2]
  return at::cat({angles.cos(), angles.sin()}, 1).to(at::kFloat);
}

}  // namespace tessera::models
