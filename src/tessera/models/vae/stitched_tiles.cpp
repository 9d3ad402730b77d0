#include "tessera/models/vae/stitched_tiles.h"

#include <algorithm>
#include <vector>

namespace tessera::models {

using at::Tensor;

namespace {

/// Goes over from the last rows (dim 1) or columns (dim 2) of `before` to the tile's first ones, in place.
void blend(const Tensor& before, Tensor& tile, int64_t dim) {
  const int64_t n = std::min(before.size(dim), tile.size(dim));
  if (n == 0) return;
  std::vector<int64_t> shape = {1, 1, 1};
  shape[dim] = n;
  const Tensor weight = (at::arange(n, tile.options()) / static_cast<double>(n)).view(shape);
  tile.narrow(dim, 0, n).mul_(weight).add_(before.narrow(dim, before.size(dim) - n, n) * (1 - weight));
}

/// A copy of the last `n` rows or columns.
Tensor last(const Tensor& tile, int64_t dim, int64_t n) {
  const int64_t kept = std::min(n, tile.size(dim));
  return tile.narrow(dim, tile.size(dim) - kept, kept).clone(at::MemoryFormat::Contiguous);
}

}  // namespace

bool applies(const StitchedTiles& tiles, int64_t h, int64_t w) {
  return tiles.size > 0 && (h > tiles.size || w > tiles.size);
}

Tensor stitch_tiles(const StitchedTiles& tiles, int64_t h, int64_t w, int64_t scale,
                    const std::function<Tensor(const Part& y, const Part& x)>& run) {
  const int64_t shared = (tiles.size - tiles.stride) * scale;
  Tensor result;
  std::vector<Tensor> above;  // the last rows of each tile of the row before, whole and blended
  for (int64_t y = 0; y < h; y += tiles.stride) {
    std::vector<Tensor> bottoms;
    Tensor left;
    for (int64_t x = 0; x < w; x += tiles.stride) {
      Tensor tile = run({y, std::min(tiles.size, h - y)}, {x, std::min(tiles.size, w - x)});
      if (!result.defined()) result = at::empty({tile.size(0), h * scale, w * scale}, tile.options());
      if (y > 0) blend(above[bottoms.size()], tile, 1);
      if (x > 0) blend(left, tile, 2);
      const int64_t rows = std::min(tiles.stride, h - y) * scale, columns = std::min(tiles.stride, w - x) * scale;
      result.narrow(1, y * scale, rows)
          .narrow(2, x * scale, columns)
          .copy_(tile.narrow(1, 0, rows).narrow(2, 0, columns));
      bottoms.push_back(last(tile, 1, shared));
      left = last(tile, 2, shared);
    }
    above = std::move(bottoms);
  }
  return result;
}

}  // namespace tessera::models
