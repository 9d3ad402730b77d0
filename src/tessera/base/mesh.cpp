#include "tessera/base/mesh.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>

#include "tessera/base/check.h"

namespace tessera {

namespace {
constexpr std::array<std::string_view, kAxes> kNames = {"pp", "dp_replicate", "dp_shard", "cp", "sp", "tp"};
}

std::string_view axis_name(Axis axis) { return kNames[static_cast<int>(axis)]; }

Mesh Mesh::parse(std::string_view text) {
  Mesh mesh;
  if (text == "single") return mesh;  // the text of a mesh of one rank
  while (!text.empty()) {
    std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t equal = item.find('=');
    const std::string name(item.substr(0, equal));
    int index = -1;
    for (int a = 0; a < kAxes; ++a)
      if (kNames[a] == name) index = a;
    if (index < 0) {
      const auto near = nearest(name, {kNames.begin(), kNames.end()});
      throw UserError(Exit::usage, "mesh", "unknown axis '" + name + "'",
                      "did you mean " + near.front() + "? The axes are pp, dp_replicate, dp_shard, cp, sp, tp");
    }
    int value = 0;
    if (equal != std::string_view::npos) {
      const auto number = item.substr(equal + 1);
      const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
      if (error != std::errc() || end != number.data() + number.size()) value = 0;
    }
    if (value < 1)
      throw UserError(Exit::usage, "mesh", "'" + std::string(item) + "': expected AXIS=N with N at least 1",
                      "for example --mesh dp_shard=2");
    if (mesh.size[index] > 1 && mesh.size[index] != value)
      throw UserError(Exit::usage, "mesh",
                      name + " = " + std::to_string(mesh.size[index]) + " and " + name + " = " + std::to_string(value) +
                          " are both given",
                      "name each axis once");
    mesh.size[index] = value;
  }
  return mesh;
}

std::string Mesh::to_string() const {
  std::string text;
  for (int a = 0; a < kAxes; ++a)
    if (size[a] > 1) text += (text.empty() ? "" : ",") + std::string(kNames[a]) + "=" + std::to_string(size[a]);
  return text.empty() ? "single" : text;
}

int Mesh::world() const {
  constexpr int64_t kMostRanks = 1 << 17;
  int64_t product = 1;
  for (int n : size) {
    product *= n;  // two factors of 31 bits fit
    if (product > kMostRanks)
      throw UserError(Exit::usage, "mesh", to_string() + " has more than " + std::to_string(kMostRanks) + " ranks",
                      "give the number of devices that run");
  }
  return static_cast<int>(product);
}

int Mesh::coordinate(int rank, Axis axis) const {
  for (int a = kAxes - 1; a > static_cast<int>(axis); --a) rank /= size[a];
  return rank % size[static_cast<int>(axis)];
}

int Mesh::dp_rank(int rank) const {
  return coordinate(rank, Axis::dp_replicate) * (*this)[Axis::dp_shard] + coordinate(rank, Axis::dp_shard);
}

int Mesh::shard_rank(int rank) const {
  return (coordinate(rank, Axis::dp_shard) * (*this)[Axis::cp] + coordinate(rank, Axis::cp)) * (*this)[Axis::sp] +
         coordinate(rank, Axis::sp);
}

std::vector<int> Mesh::group(int rank, const std::vector<Axis>& axes) const {
  std::vector<int> members = {rank};
  int stride =
      // distance in ranks between neighbours on the axis; the first axis is the slowest, so members stay in order
      world();
  for (Axis a : kAllAxes) {
    stride /= (*this)[a];
    if (std::find(axes.begin(), axes.end(), a) == axes.end()) continue;
    const int here = coordinate(rank, a);
    std::vector<int> more;
    more.reserve(members.size() * (*this)[a]);
    for (int member : members)
      for (int c = 0; c < (*this)[a]; ++c) more.push_back(member + (c - here) * stride);
    members = std::move(more);
  }
  return members;
}

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
