#pragma once
// Runs a function on overlapping tiles of a frame or a clip and blends the results, so that its memory is that of one
// tile: by ramps over whole tiles (Wan), or stitched as diffusers' image autoencoders do (DC-AE, HunyuanVideo): one at
// every multiple of the stride, the last ones shorter, each blended with what its neighbours above and to the left became.
//
//   Tensor video = blend_tiles(tiles, latent_h, latent_w, 8,
//                              [&](const Span& y, const Span& x) { return decode(cut(latent, y, x)); });
//   Tensor clip = stitch_clips(tiles, h, w, 32, [&](const Part& y, const Part& x) { return decode(cut(latent, y, x)); });
#include <functional>
#include <string>
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

/// Length of a tile and distance from one to the next along a side, in cells of the input; size 0: no tiles.
struct StitchedTiles {
  int64_t size = 0, stride = 0;

  int64_t shared() const { return size - stride; }
};

/// Tiles of pictures, which need not be square.
struct TileGrid {
  StitchedTiles y, x;
};

/// From pixels (frames for tiles in time) to cells of `cell` of them. Throws UserError (usage) where they are not whole
/// cells, or no larger than what they share; `usual` names a good choice.
StitchedTiles in_cells(int64_t size, int64_t overlap, int64_t cell, const char* unit, const char* usual);
/// The same of a picture's tiles, from pixels.
TileGrid grid_in_cells(const Tiling& tiling, int64_t cell, const char* usual);

/// The range of a tile along one side, and its overlaps with the tile before and the tile after it.
struct Span {
  int64_t begin = 0, end = 0;
  int64_t shared_before = 0, shared_after = 0;
  int64_t length() const { return end - begin; }
};

/// Spans of `size` that cover 0 .. length, neighbours sharing `overlap` or more (the last one ends at `length`).
std::vector<Span> tile_spans(int64_t length, int64_t size, int64_t overlap);

/// The same of a side of `length` cells; one span where nothing is tiled.
std::vector<Span> tile_spans(const StitchedTiles& tiles, int64_t length);
/// Cells of the longest of them: what the memory of a tile follows from.
int64_t longest_span(const StitchedTiles& tiles, int64_t length);

/// Runs every tile of an [h, w] grid; `run` returns [C, F, n * scale, m * scale] for spans of n and m cells. Where tiles
/// overlap the result is their mean, weighted by ramps that fall towards a tile's edge. One tile alone is returned as it
/// is.
at::Tensor blend_tiles(const TileGrid& tiles, int64_t h, int64_t w, int64_t scale,
                       const std::function<at::Tensor(const Span& y, const Span& x)>& run);

/// A tile's range along one side of the input.
struct Part {
  int64_t begin = 0, length = 0;
};

/// The tiles along a side of so many cells.
std::vector<Part> parts_of(const StitchedTiles& tiles, int64_t length);

/// Whether a grid of h x w is larger than a tile; then a side that fits in one tile is cut at the stride as well.
bool applies(const TileGrid& tiles, int64_t h, int64_t w);

/// The tiles of an [h, w] grid along each side: one where it is no larger than a tile.
struct GridParts {
  std::vector<Part> y, x;
};
GridParts parts_of(const TileGrid& tiles, int64_t h, int64_t w);

/// Runs every tile of an [h, w] grid; `run` returns [C, n * scale, m * scale] for parts of n and m cells. Rows that a
/// tile shares with the one above go over from that tile's values to its own in equal steps, then columns alike.
/// Takes the memory of the result, a tile, and the shared rows and columns.
at::Tensor stitch_tiles(const TileGrid& tiles, int64_t h, int64_t w, int64_t scale,
                        const std::function<at::Tensor(const Part& y, const Part& x)>& run);

/// The same of clips: `run` returns [C, F, n * scale, m * scale]. A grid that is no larger than a tile is one part.
at::Tensor stitch_clips(const TileGrid& tiles, int64_t h, int64_t w, int64_t scale,
                        const std::function<at::Tensor(const Part& y, const Part& x)>& run);

/// Where a part of a side of `cells` cells lies in the `pixels` that the side was encoded from, `cell` to a cell: the last
/// part has what is left of them, a few more or less than whole cells.
Part pixels_of(const Part& part, int64_t cells, int64_t cell, int64_t pixels);
/// Those of the largest part.
int64_t most_pixels(const std::vector<Part>& parts, int64_t cells, int64_t cell, int64_t pixels);
/// Cells of the largest part.
int64_t longest(const std::vector<Part>& parts);

/// "-tiles256+64" for cells of `cell` pixels, of the names of what autoencoders make; empty without tiles.
std::string tiles_text(const char* what, const StitchedTiles& tiles, int64_t cell);
/// The same, where tiles that are not square have both sides: "-tiles256+64x192+32".
std::string tiles_text(const TileGrid& tiles, int64_t cell);

/// Bytes of stitch_tiles beside one `run`, for results of `channels` fp32 numbers a cell.
int64_t stitched_bytes(const TileGrid& tiles, int64_t channels, int64_t h, int64_t w);

/// The same along time, for a clip of a first frame and `groups` of further ones, causal in time: `run` is given a part
/// of the groups, and returns [C, 1 + n * scale, h, w]: what became of them and of the frame before them, which counts in
/// the first tile alone. The clip must have as many groups as a tile, or more.
at::Tensor stitch_frames(const StitchedTiles& tiles, int64_t groups, int64_t scale,
                         const std::function<at::Tensor(const Part& groups)>& run);

/// The same for clips without such a frame, that are not causal: `run` is given a part of `cells` latent frames and returns
/// [C, frames(part's length), h, w], of which those that the next tile does not begin with are kept; neighbours share
/// `shared` frames. A result may be shorter than the clip, where frames() of a last short part is.
at::Tensor stitch_parts(const StitchedTiles& tiles, int64_t cells, int64_t shared,
                        const std::function<int64_t(int64_t cells)>& frames,
                        const std::function<at::Tensor(const Part& part)>& run);

}  // namespace tessera::models
