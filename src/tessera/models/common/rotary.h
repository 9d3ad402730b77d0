#pragma once
// Rotary tables of tokens on a grid of time, rows and columns, and the sinusoids of timesteps.
//
//   auto [cos, sin] = grid_rotary(clip_grid(f, h, w), head_dim);      // [f * h * w, head_dim / 2]
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::models {

/// Positions of a box of tokens: every combination, time outermost.
struct Grid {
  std::vector<int64_t> times, rows, columns;
  int64_t count() const { return static_cast<int64_t>(times.size() * rows.size() * columns.size()); }
};

Grid clip_grid(int64_t frames, int64_t h, int64_t w);  ///< from 0 on; h, w in tokens

/// Rotary tables of a grid: cos and sin [count, head_dim / 2] fp32. A head's complex channels are divided among time,
/// rows and columns, each with the frequencies of its own number of channels.
std::pair<at::Tensor, at::Tensor> grid_rotary(const Grid& grid, int64_t head_dim);

/// The same into tables that are there, rows of whichever device.
void fill_rotary(const at::Tensor& cos, const at::Tensor& sin, const Grid& grid);
/// With that many complex channels for time, rows and columns.
void fill_rotary(const at::Tensor& cos, const at::Tensor& sin, const Grid& grid, const std::array<int64_t, 3>& shares,
                 double theta = 10000);

/// Positions times theta^(-i / count), in fp64, and their sines and cosines. All of it lies in host memory that
/// is no tensor's: a batch is packed while others are in flight, and the plan counts what pack() returns and nothing
/// beside it.
class Angles {
 public:
  Angles(std::vector<double> positions, int64_t count, double theta = 10000);
  at::Tensor cos();  ///< [positions, count]; overwritten by the next call of either, gone with the object
  at::Tensor sin();

 private:
  std::array<int64_t, 2> sizes_;
  std::vector<double> angles_, turned_;
};

/// 10000^(-i / count), i = 0 .. count - 1, in fp64.
at::Tensor rotary_frequencies(int64_t count);

/// [cos | sin] of t times rotary_frequencies(dim / 2): [R, dim] fp32, angles in fp64.
at::Tensor timestep_sinusoid(const std::vector<double>& t, int64_t dim);
/// What sinusoids [R, dim], of either, change by where t does by dt.
at::Tensor sinusoid_tangent(const at::Tensor& sinusoids, const std::vector<double>& dt);
/// The same of programs that compute the angles in fp32: those of thousands are off by rounding.
at::Tensor program_sinusoid(const std::vector<double>& t, int64_t dim);

// Tables of sines and cosines of a token's column and row, added to tokens: the absolute positions of DiT (Peebles and
// Xie 2023) and of the models after it.
//
//   fill_positions(rows, {frames, h, w}, {unit_h, unit_w});

/// Fills rows [frames * h * w, D], D a multiple of 4: half of the channels for the column, half for the row, each
/// [sin | cos] of the position times its unit, with the frequencies 10000^(-i / (D / 4)). The same in every frame.
void fill_positions(const at::Tensor& rows, const std::array<int64_t, 3>& grid, const std::array<double, 2>& units);

}  // namespace tessera::models
