#include "tessera/base/rank_grid.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>

namespace tessera {

namespace {

constexpr int kListed = 256;

/// Takes a number and what must stand before it (0: nothing) off the text's front.
std::optional<int> take_number(std::string_view& text, char before = 0) {
  if (before != 0) {
    if (!text.starts_with(before)) return std::nullopt;
    text.remove_prefix(1);
  }
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

}  // namespace

RankGrid::RankGrid(const Mesh& mesh, int rank, const std::vector<Axis>& axes) : first_(rank) {
  int distance = mesh.world();
  for (const Axis axis : kAllAxes) {
    distance /= mesh[axis];
    if (mesh[axis] == 1 || std::ranges::find(axes, axis) == axes.end()) continue;
    first_ -= mesh.coordinate(rank, axis) * distance;
    sides_.push_back({mesh[axis], distance});
  }
}

int RankGrid::size() const {
  int product = 1;
  for (const Side& side : sides_) product *= side.count;
  return product;
}

int RankGrid::below(int rank) const {
  int left = rank - first_, inner = size(), all = 0;
  for (const Side& side : sides_) {
    if (left <= 0) return all;
    inner /= side.count;
    const int whole = std::min(left / side.distance, side.count);
    all += whole * inner;
    if (whole == side.count) return all;
    left -= whole * side.distance;
  }
  return all + (left > 0 ? 1 : 0);
}

std::string RankGrid::text() const {
  std::string text = std::to_string(first_);
  if (size() > kListed) {
    for (const Side& side : sides_) text += "+" + std::to_string(side.count) + "x" + std::to_string(side.distance);
    return text;
  }
  std::vector<int> ranks = {first_};
  for (const Side& side : sides_) {
    std::vector<int> more;
    for (const int rank : ranks)
      for (int i = 0; i < side.count; ++i) more.push_back(rank + i * side.distance);
    ranks = std::move(more);
  }
  for (size_t i = 1; i < ranks.size(); ++i) text += "," + std::to_string(ranks[i]);
  return text;
}

std::optional<std::vector<int>> read_ranks(std::string_view text, size_t most) {
  const std::optional<int> first = take_number(text);
  if (!first || most < 1) return std::nullopt;
  std::vector<int> ranks = {*first};
  const bool grid = text.starts_with('+');
  while (!grid && !text.empty()) {
    const std::optional<int> rank = take_number(text, ',');
    if (!rank || ranks.size() == most) return std::nullopt;
    ranks.push_back(*rank);
  }
  while (grid && !text.empty()) {
    const std::optional<int> count = take_number(text, '+'), distance = take_number(text, 'x');
    if (!count || !distance || *count < 2 || static_cast<size_t>(*count) > most / ranks.size()) return std::nullopt;
    std::vector<int> more;
    for (const int64_t rank : ranks)
      for (int64_t i = 0; i < *count; ++i) {
        if (rank + i * *distance > std::numeric_limits<int>::max()) return std::nullopt;
        more.push_back(static_cast<int>(rank + i * *distance));
      }
    ranks = std::move(more);
  }
  return ranks;
}

}  // namespace tessera
