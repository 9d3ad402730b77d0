#pragma once
// Runs a function on overlapping tiles of a frame and blends the results, so that its memory is that of one tile.
//
//   Tensor video = blend_tiles({.size = 256, .overlap = 64}, 8, latent_h, latent_w, 8,
//                              [&](const Span& y, const Span& x) { return decode(cut(latent, y, x)); });
#include <functional>
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::models {

/// Side of a tile and least overlap of neighbours, in pixels; size 0: no tiling.
struct Tiling {
  static constexpr int64_t kUsual = -1;  ///< what make_vae replaces by the autoencoder's usual overlap
  int64_t size = 0;
  int64_t overlap = 0;
  /// Frames of a tile after its first, and those that neighbours share, for autoencoders that code all frames of a clip
  /// at once (VideoVae::tiles_in_time); 0: no tiles in time.
  int64_t frames = 0;
  int64_t shared_frames = 0;
  /// Of a row of pixels, where tiles are not square, as `size` and `overlap` are of a column then; 0: they are square.
  int64_t width = 0;
  int64_t width_overlap = 0;
};

/// The range of a tile along one side, and its overlaps with the tile before and the tile after it.
struct Span {
  int64_t begin = 0, end = 0;
  int64_t shared_before = 0, shared_after = 0;
  int64_t length() const { return end - begin; }
};

/// Spans of `size` that cover 0 .. length, neighbours sharing `overlap` or more (the last one ends at `length`).
std::vector<Span> tile_spans(int64_t length, int64_t size, int64_t overlap);

/// The same of a side of `length` cells, each `cell` pixels; one span where nothing is tiled.
std::vector<Span> tile_spans(const Tiling& tiling, int64_t cell, int64_t length);

/// Runs every tile of an [h, w] grid whose cells have a side of `cell` pixels; `run` returns [C, F, n * scale,
/// m * scale] for spans of n and m cells. Where tiles overlap the result is their mean, weighted by ramps that fall
/// towards a tile's edge. One tile alone is returned as it is.
at::Tensor blend_tiles(const Tiling& tiling, int64_t cell, int64_t h, int64_t w, int64_t scale,
                       const std::function<at::Tensor(const Span& y, const Span& x)>& run);

/// Cells of the longest span along a side of `length` cells: what the memory of a tile follows from.
int64_t tile_length(const Tiling& tiling, int64_t cell, int64_t length);

}  // namespace tessera::models
