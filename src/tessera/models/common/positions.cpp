#include "tessera/models/common/positions.h"

#include "tessera/models/common/rotary.h"

namespace tessera::models {

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
