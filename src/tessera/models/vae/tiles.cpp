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

std::vector<Span> tile_spans(const Tiling& tiling, int64_t cell, int64_t length) {
  if (tiling.size == 0) return {{0, length, 0, 0}};
  return tile_spans(length, tiling.size / cell, div_up(tiling.overlap, cell));
}

int64_t tile_length(const Tiling& tiling, int64_t cell, int64_t length) {
  return tile_spans(tiling, cell, length).front().length();
}

Tensor blend_tiles(const Tiling& tiling, int64_t cell, int64_t h, int64_t w, int64_t scale,
                   const std::function<Tensor(const Span& y, const Span& x)>& run) {
  const std::vector<Span> rows = tile_spans(tiling, cell, h), columns = tile_spans(tiling, cell, w);
  if (rows.size() == 1 && columns.size() == 1) return run(rows[0], columns[0]);
  Tensor sum, weights = at::zeros({h * scale, w * scale}, at::kFloat);
  for (const Span& y : rows) {
    for (const Span& x : columns) {
      Tensor tile = run(y, x);  // [C, F, n, m]
      const Tensor weight = ramp(y, scale).unsqueeze(1) * ramp(x, scale);
      if (!sum.defined()) sum = at::zeros({tile.size(0), tile.size(1), h * scale, w * scale}, tile.options());
      const auto part = [&](const Tensor& whole, int64_t dim) {
        return whole.narrow(dim, y.begin * scale, tile.size(2)).narrow(dim + 1, x.begin * scale, tile.size(3));
      };
      part(sum, 2).add_(tile.mul_(weight));
      part(weights, 0).add_(weight);
    }
  }
  return sum.div_(weights);
}

}  // namespace tessera::models
