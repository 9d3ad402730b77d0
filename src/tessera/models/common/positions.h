#pragma once
// Tables of sines and cosines of a token's column and row, added to tokens: the absolute positions of DiT (Peebles and
// Xie 2023) and of the models after it.
//
//   fill_positions(rows, {frames, h, w}, {unit_h, unit_w});
#include <array>
#include <cstdint>

#include "tessera/ops/tensor.h"

namespace tessera::models {

/// Fills rows [frames * h * w, D], D a multiple of 4: half of the channels for the column, half for the row, each
/// [sin | cos] of the position times its unit, with the frequencies 10000^(-i / (D / 4)). The same in every frame.
void fill_positions(const at::Tensor& rows, const std::array<int64_t, 3>& grid, const std::array<double, 2>& units);

}  // namespace tessera::models
