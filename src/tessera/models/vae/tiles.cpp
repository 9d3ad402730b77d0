#include "tessera/models/vae/tiles.h"

#include <algorithm>

#include "tessera/base/check.h"

namespace tessera::models {

using at::Tensor;

namespace {

/// Weight of each row of a tile: rises over the overlap with the tile before, falls over the overlap with the next one.
/// It is never 0, as results are divided by the sum of the weights.
Tensor ramp(const Span& span, int64_t scale) {
  const int64_t n = span.length() * scale;
  Tensor weight = at::ones({n}, at::kFloat);
  float* w = weight.mutable_data_ptr<float>();
  const auto side = [&](int64_t shared, auto place) {
    const int64_t rows = shared * scale;
    for (int64_t i = 0; i < rows; ++i) w[place(i)] *= (static_cast<float>(i) + 0.5F) / static_cast<float>(rows);
  };
  side(span.shared_before, [](int64_t i) { return i; });
  side(span.shared_after, [n](int64_t i) { return n - 1 - i; });
  return weight;
}

}  // namespace

std::vector<Span> tile_spans(int64_t length, int64_t size, int64_t overlap) {
  if (size < 1 || overlap < 0 || overlap >= size)
    throw UserError(Exit::usage, "models.tiles",
                    "tiles of " + std::to_string(size) + " latent cells that share " + std::to_string(overlap) +
                        ": a tile must be larger than what it shares",
                    "256 pixels that share 64 are usual");
  std::vector<Span> spans;
  for (int64_t begin = 0;; begin += size - overlap) {
    const bool last = begin + size >= length;
    if (last) begin = std::max<int64_t>(0, length - size);  // as large as the others, with a larger overlap
    spans.push_back({begin, std::min(begin + size, length), 0, 0});
    if (last) break;
  }
  for (size_t i = 0; i + 1 < spans.size(); ++i)
    spans[i].shared_after = spans[i + 1].shared_before = spans[i].end - spans[i + 1].begin;
  return spans;
}

std::vector<Span> tile_spans(const StitchedTiles& tiles, int64_t length) {
  if (tiles.size == 0) return {{0, length, 0, 0}};
  return tile_spans(length, tiles.size, tiles.shared());
}

int64_t longest_span(const StitchedTiles& tiles, int64_t length) { return tile_spans(tiles, length).front().length(); }

Tensor blend_tiles(const TileGrid& tiles, int64_t h, int64_t w, int64_t scale,
                   const std::function<Tensor(const Span& y, const Span& x)>& run) {
  const std::vector<Span> rows = tile_spans(tiles.y, h), columns = tile_spans(tiles.x, w);
  if (rows.size() == 1 && columns.size() == 1) return run(rows[0], columns[0]);
  Tensor sum, weights = at::zeros({h * scale, w * scale}, at::kFloat);
  for (const Span& y : rows) {
    for (const Span& x : columns) {
      Tensor tile = run(y, x);  // [C, F, n, m]
      if (!sum.defined()) sum = at::zeros({tile.size(0), tile.size(1), h * scale, w * scale}, tile.options());
      if (tile.is_meta()) continue;  // as are the others: a shape is all that is asked for
      const Tensor weight = ramp(y, scale).unsqueeze(1) * ramp(x, scale);
      const auto part = [&](const Tensor& whole, int64_t dim) {
        return whole.narrow(dim, y.begin * scale, tile.size(2)).narrow(dim + 1, x.begin * scale, tile.size(3));
      };
      part(sum, 2).add_(tile.mul_(weight));
      part(weights, 0).add_(weight);
    }
  }
  return sum.is_meta() ? sum : sum.div_(weights);
}

namespace {

/// Goes over from the last rows, columns or frames of `before` to the tile's first ones along `dim`, in place.
void blend(const Tensor& before, Tensor& tile, int64_t dim) {
  const int64_t n = std::min(before.size(dim), tile.size(dim));
  if (n == 0) return;
  std::vector<int64_t> shape(static_cast<size_t>(tile.dim()), 1);
  shape[dim] = n;
  const Tensor weight = (at::arange(n, tile.options()) / static_cast<double>(n)).view(shape);
  tile.narrow(dim, 0, n).mul_(weight).add_(before.narrow(dim, before.size(dim) - n, n) * (1 - weight));
}

/// A copy of the last `n` rows, columns or frames.
Tensor last(const Tensor& tile, int64_t dim, int64_t n) {
  const int64_t kept = std::min(n, tile.size(dim));
  return tile.narrow(dim, tile.size(dim) - kept, kept).clone(at::MemoryFormat::Contiguous);
}

}  // namespace

StitchedTiles in_cells(int64_t size, int64_t overlap, int64_t cell, const char* unit, const char* usual) {
  if (size % cell != 0 || overlap % cell != 0 || size < 0 || overlap < 0 || (size > 0 && overlap >= size))
    throw UserError(Exit::usage, "models.vae",
                    "tiles of " + std::to_string(size) + " " + unit + " that share " + std::to_string(overlap) +
                        ": expected multiples of " + std::to_string(cell) + ", the tile larger than what it shares",
                    usual);
  return {size / cell, (size - overlap) / cell};
}

TileGrid grid_in_cells(const Tiling& tiling, int64_t cell, const char* usual) {
  const StitchedTiles y = in_cells(tiling.size, tiling.overlap, cell, "pixels", usual);
  return {y, tiling.width > 0 ? in_cells(tiling.width, tiling.width_overlap, cell, "pixels", usual) : y};
}

std::vector<Part> parts_of(const StitchedTiles& tiles, int64_t length) {
  std::vector<Part> parts;
  for (int64_t begin = 0; begin < length; begin += tiles.stride)
    parts.push_back({begin, std::min(tiles.size, length - begin)});
  return parts;
}

bool applies(const TileGrid& tiles, int64_t h, int64_t w) {
  return tiles.y.size > 0 && (h > tiles.y.size || w > tiles.x.size);
}

GridParts parts_of(const TileGrid& tiles, int64_t h, int64_t w) {
  if (!applies(tiles, h, w)) return {{{0, h}}, {{0, w}}};
  return {parts_of(tiles.y, h), parts_of(tiles.x, w)};
}

Tensor stitch_tiles(const TileGrid& tiles, int64_t h, int64_t w, int64_t scale,
                    const std::function<Tensor(const Part& y, const Part& x)>& run) {
  Tensor result;
  std::vector<Tensor> above;  // the last rows of each tile of the row before, whole and blended
  for (const Part& part_y : parts_of(tiles.y, h)) {
    const int64_t y = part_y.begin;
    std::vector<Tensor> bottoms;
    Tensor left;
    for (const Part& part_x : parts_of(tiles.x, w)) {
      const int64_t x = part_x.begin;
      Tensor tile = run(part_y, part_x);
      if (!result.defined()) result = at::empty({tile.size(0), h * scale, w * scale}, tile.options());
      if (y > 0) blend(above[bottoms.size()], tile, 1);
      if (x > 0) blend(left, tile, 2);
      const int64_t rows = std::min(tiles.y.stride, h - y) * scale, columns = std::min(tiles.x.stride, w - x) * scale;
      result.narrow(1, y * scale, rows)
          .narrow(2, x * scale, columns)
          .copy_(tile.narrow(1, 0, rows).narrow(2, 0, columns));
      bottoms.push_back(last(tile, 1, tiles.y.shared() * scale));
      left = last(tile, 2, tiles.x.shared() * scale);
    }
    above = std::move(bottoms);
  }
  return result;
}

Tensor stitch_clips(const TileGrid& tiles, int64_t h, int64_t w, int64_t scale,
                    const std::function<Tensor(const Part& y, const Part& x)>& run) {
  if (!applies(tiles, h, w)) return run({0, h}, {0, w});
  int64_t channels = 0;
  const Tensor flat = stitch_tiles(tiles, h, w, scale, [&](const Part& y, const Part& x) {
    const Tensor tile = run(y, x);
    channels = tile.size(0);
    return tile.flatten(0, 1);  // frames are blended alike
  });
  return flat.unflatten(0, {channels, -1});
}

Part pixels_of(const Part& part, int64_t cells, int64_t cell, int64_t pixels) {
  const bool last = part.begin + part.length == cells;
  return {part.begin * cell, last ? pixels - part.begin * cell : part.length * cell};
}

int64_t most_pixels(const std::vector<Part>& parts, int64_t cells, int64_t cell, int64_t pixels) {
  int64_t most = 0;
  for (const Part& part : parts) most = std::max(most, pixels_of(part, cells, cell, pixels).length);
  return most;
}

int64_t longest(const std::vector<Part>& parts) { return std::ranges::max_element(parts, {}, &Part::length)->length; }

std::string tiles_text(const char* what, const StitchedTiles& tiles, int64_t cell) {
  return tiles.size == 0 ? std::string()
                         : what + std::to_string(tiles.size * cell) + "+" + std::to_string(tiles.shared() * cell);
}

std::string tiles_text(const TileGrid& tiles, int64_t cell) {
  const bool square = tiles.x.size == tiles.y.size && tiles.x.stride == tiles.y.stride;
  return tiles_text("-tiles", tiles.y, cell) + (square ? "" : tiles_text("x", tiles.x, cell));
}

int64_t stitched_bytes(const TileGrid& tiles, int64_t channels, int64_t h, int64_t w) {
  const int64_t columns = w / tiles.x.stride * tiles.x.size + std::min(tiles.x.size, w % tiles.x.stride);
  return 4 * channels * (h * w + 2 * tiles.y.shared() * columns + tiles.x.shared() * tiles.y.size);
}

Tensor stitch_frames(const StitchedTiles& tiles, int64_t groups, int64_t scale,
                     const std::function<Tensor(const Part& groups)>& run) {
  const int64_t shared = tiles.shared() * scale;
  Tensor result, before;  // before: the last frames of the tile before, blended
  for (const Part& part : parts_of(tiles, groups)) {
    const int64_t begin = part.begin, length = part.length, lead = begin == 0 ? 1 : 0;
    const Tensor whole = run(part);
    Tensor tile = whole.narrow(1, 1 - lead, lead + length * scale);
    if (!result.defined())
      result = at::empty({tile.size(0), 1 + groups * scale, tile.size(2), tile.size(3)}, tile.options());
    if (before.defined()) blend(before, tile, 1);
    const int64_t kept = lead + std::min(tiles.stride, groups - begin) * scale;
    result.narrow(1, 1 - lead + begin * scale, kept).copy_(tile.narrow(1, 0, kept));
    before = last(tile, 1, shared);
  }
  return result;
}

Tensor stitch_parts(const StitchedTiles& tiles, int64_t cells, int64_t shared,
                    const std::function<int64_t(int64_t cells)>& frames,
                    const std::function<Tensor(const Part& part)>& run) {
  const int64_t most = frames(tiles.size) - shared;  // that are kept of a tile
  const std::vector<Part> parts = parts_of(tiles, cells);
  int64_t all = 0, done = 0;
  for (const Part& part : parts) all += std::min(most, frames(part.length));
  Tensor result, before;  // before: the last frames of the tile before, blended
  for (const Part& part : parts) {
    Tensor tile = run(part);
    if (!result.defined()) result = at::empty({tile.size(0), all, tile.size(2), tile.size(3)}, tile.options());
    if (before.defined()) blend(before, tile, 1);
    const int64_t kept = std::min(most, tile.size(1));
    result.narrow(1, done, kept).copy_(tile.narrow(1, 0, kept));
    done += kept;
    before = last(tile, 1, shared);
  }
  return result;
}

}  // namespace tessera::models
