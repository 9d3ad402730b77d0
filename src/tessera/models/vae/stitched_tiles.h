#pragma once
// Tiles as diffusers' image autoencoders cut and blend them (DC-AE, HunyuanVideo): one at every multiple of the stride,
// the last ones shorter, each blended with what its neighbours above and to the left became.
//
//   if (applies(tiles, h, w))
//     picture = stitch_tiles(tiles, h, w, 32, [&](const Part& y, const Part& x) { return decode(cut(latent, y, x)); });
#include <functional>
#include <string>
#include <vector>

#include "tessera/models/vae/tiles.h"
#include "tessera/ops/tensor.h"

namespace tessera::models {

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

/// Bytes of stitch_clips where the largest tile, or the grid where there is none, takes `pass(h, w)` and makes `numbers` fp32
/// numbers a cell.
int64_t tiled_bytes(const TileGrid& tiles, int64_t h, int64_t w, int64_t numbers,
                    const std::function<int64_t(int64_t h, int64_t w)>& pass);

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
