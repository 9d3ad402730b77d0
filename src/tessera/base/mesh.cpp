#include "tessera/base/mesh.h"

#include <algorithm>
#include <charconv>

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

}  // namespace tessera
