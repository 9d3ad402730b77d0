#pragma once
// Tiles as diffusers' image autoencoders cut and blend them (DC-AE, HunyuanVideo): one at every multiple of the stride,
// the last ones shorter, each blended with what its neighbours above and to the left became.
//
//   if (applies(tiles, h, w))
//     picture = stitch_tiles(tiles, h, w, 32, [&](const Part& y, const Part& x) { return decode(cut(latent, y, x)); });
#include <functional>

#include "tessera/ops/tensor.h"

namespace tessera::models {

/// Side of a tile and distance from one to the next, in cells of the input.
struct StitchedTiles {
  int64_t size = 0, stride = 0;
};

/// A tile's range along one side of the input.
struct Part {
  int64_t begin = 0, length = 0;
};

/// Whether a grid of h x w is larger than a tile; then a side that fits in one tile is cut at the stride as well.
bool applies(const StitchedTiles& tiles, int64_t h, int64_t w);

/// Runs every tile of an [h, w] grid; `run` returns [C, n * scale, m * scale] for parts of n and m cells. Rows that a
/// tile shares with the one above go over from that tile's values to its own in equal steps, then columns alike.
/// Takes the memory of the result, a tile, and the shared rows and columns.
at::Tensor stitch_tiles(const StitchedTiles& tiles, int64_t h, int64_t w, int64_t scale,
                        const std::function<at::Tensor(const Part& y, const Part& x)>& run);

}  // namespace tessera::models
