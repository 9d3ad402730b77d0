#include "tessera/models/common/rotary.h"

#include <cmath>
#include <numeric>

namespace tessera::models {

using at::Tensor;

namespace {

std::vector<int64_t> count_up(int64_t count) {
  std::vector<int64_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

/// The vector's numbers as a tensor of that memory.
Tensor tensor_of(std::vector<double>& numbers, at::IntArrayRef sizes) {
  return at::from_blob(numbers.data(), sizes, at::kDouble);
}

/// theta^(-i / count) into `out` [count].
void put_frequencies(Tensor out, double theta = 10000) {
  const int64_t count = out.numel();
  at::arange_out(out, count).neg_().div_(static_cast<double>(count));
  at::pow_out(out, theta, out);
}

}  // namespace

Angles::Angles(std::vector<double> positions, int64_t count, double theta)
    : sizes_{static_cast<int64_t>(positions.size()), count} {
  std::vector<double> frequencies(static_cast<size_t>(count));
  put_frequencies(tensor_of(frequencies, {count}), theta);
  angles_.resize(positions.size() * frequencies.size());
  turned_.resize(angles_.size());
  Tensor all = tensor_of(angles_, sizes_);
  at::mul_out(all, tensor_of(positions, {sizes_[0], 1}), tensor_of(frequencies, {count}));
}

Tensor Angles::cos() {
  Tensor turned = tensor_of(turned_, sizes_);
  return at::cos_out(turned, tensor_of(angles_, sizes_));
}

Tensor Angles::sin() {
  Tensor turned = tensor_of(turned_, sizes_);
  return at::sin_out(turned, tensor_of(angles_, sizes_));
}

Grid clip_grid(int64_t frames, int64_t h, int64_t w) { return {count_up(frames), count_up(h), count_up(w)}; }

void fill_rotary(const Tensor& cos, const Tensor& sin, const Grid& grid) {
  const int64_t channels = cos.size(1), third = channels / 3;
  fill_rotary(cos, sin, grid, {channels - 2 * third, third, third});
}

void fill_rotary(const Tensor& cos, const Tensor& sin, const Grid& grid, const std::array<int64_t, 3>& shares,
                 double theta) {
  const auto [of_times, of_rows, of_columns] = shares;
  const int64_t channels = cos.size(1);
  const auto f = static_cast<int64_t>(grid.times.size()), h = static_cast<int64_t>(grid.rows.size()),
             w = static_cast<int64_t>(grid.columns.size());
  const auto put = [&](const std::vector<int64_t>& positions, int64_t first, int64_t share, at::IntArrayRef shape) {
    Angles angles({positions.begin(), positions.end()}, share, theta);
    cos.view({f, h, w, channels}).narrow(3, first, share).copy_(angles.cos().view(shape));
    sin.view({f, h, w, channels}).narrow(3, first, share).copy_(angles.sin().view(shape));
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
  const Tensor frequencies = at::empty({count}, at::kDouble);
  put_frequencies(frequencies);
  return frequencies;
}

Tensor timestep_sinusoid(const std::vector<double>& t, int64_t dim) {
  Angles angles(t, dim / 2);
  const Tensor rows = at::empty({static_cast<int64_t>(t.size()), dim}, at::kFloat);
  rows.narrow(1, 0, dim / 2).copy_(angles.cos());
  rows.narrow(1, dim / 2, dim / 2).copy_(angles.sin());
  return rows;
}

Tensor sinusoid_tangent(const Tensor& sinusoids, const std::vector<double>& dt) {
  const auto halves = sinusoids.chunk(2, 1);
  const Tensor rates =
      (rotary_frequencies(sinusoids.size(1) / 2) * at::tensor(dt, at::kDouble).unsqueeze(1)).to(sinusoids.options());
  return at::cat({-halves[1] * rates, halves[0] * rates}, 1);
}

Tensor program_sinusoid(const std::vector<double>& t, int64_t dim) {
  const int64_t half = dim / 2;
  const Tensor frequencies = at::exp(at::arange(half, at::kFloat) * -std::log(10000.0) / half);
  const Tensor angles = at::outer(at::tensor(t, at::kDouble).to(at::kFloat), frequencies);  // [R, half]
  return at::cat({angles.cos(), angles.sin()}, 1);
}

void fill_positions(const at::Tensor& rows, const std::array<int64_t, 3>& grid, const std::array<double, 2>& units) {
  const int64_t h = grid[1], w = grid[2], half = rows.size(1) / 2;
  const at::Tensor to = rows.view({grid[0], h, w, rows.size(1)});
  const auto put = [&](int64_t count, double unit, int64_t first, at::IntArrayRef shape) {
    std::vector<double> at(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) at[static_cast<size_t>(i)] = static_cast<double>(i) * unit;
    Angles angles(std::move(at), half / 2);
    to.narrow(3, first, half / 2).copy_(angles.sin().view(shape));
    to.narrow(3, first + half / 2, half / 2).copy_(angles.cos().view(shape));
  };
  put(w, units[1], 0, {1, 1, w, half / 2});
  put(h, units[0], half, {1, h, 1, half / 2});
}

}  // namespace tessera::models
