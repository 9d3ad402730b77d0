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

void fill_rotary(const Tensor& cos, const Tensor& sin, const Grid& grid) {
  const int64_t channels = cos.size(1), third = channels / 3;
  fill_rotary(cos, sin, grid, {channels - 2 * third, third, third});
}

void fill_rotary(const Tensor& cos, const Tensor& sin, const Grid& grid, const std::array<int64_t, 3>& shares) {
  const auto [of_times, of_rows, of_columns] = shares;
  const int64_t channels = cos.size(1);
  const auto f = static_cast<int64_t>(grid.times.size()), h = static_cast<int64_t>(grid.rows.size()),
             w = static_cast<int64_t>(grid.columns.size());
  const auto put = [&](const std::vector<int64_t>& positions, int64_t first, int64_t share, at::IntArrayRef shape) {
    const Tensor turned = angles(positions, share).view(shape);
    cos.view({f, h, w, channels}).narrow(3, first, share).copy_(turned.cos());
    sin.view({f, h, w, channels}).narrow(3, first, share).copy_(turned.sin());
  };
  put(grid.times, 0, of_times, {f, 1, 1, of_times});
  put(grid.rows, of_times, of_rows, {1, h, 1, of_rows});
  put(grid.columns, of_times + of_rows, of_columns, {1, 1, w, of_columns});
}

std::pair<Tensor, Tensor> grid_rotary(const Grid& grid, int64_t head_dim) {
  const Tensor cos = at::empty({grid.count(), head_dim / 2}, at::kFloat), sin = at::empty_like(cos);
  fill_rotary(cos, sin, grid);
  return {cos, sin};
}

Tensor rotary_frequencies(int64_t count) {
  return at::pow(10000.0, -at::arange(count, at::kDouble) / static_cast<double>(count));
}

Tensor timestep_sinusoid(const std::vector<double>& t, int64_t dim) {
  const Tensor angles = at::outer(at::tensor(t, at::kDouble), rotary_frequencies(dim / 2));  // [R, dim / 2]
  return at::cat({angles.cos(), angles.sin()}, 1).to(at::kFloat);
}

}  // namespace tessera::models
