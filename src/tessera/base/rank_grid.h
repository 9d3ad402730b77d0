#pragma once
// The ranks of a group as what they are on a mesh, a grid: a first rank, and a count and a distance for each axis. Nothing
// here takes time or memory by their number, but for the lists that are asked for.
//
//   const RankGrid grid(mesh, rank, {Axis::dp_shard, Axis::cp});
//   grid.text();                                               // "0,2,4,6", "0+131072x1"
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/mesh.h"

namespace tessera {

class RankGrid {
 public:
  /// Ranks that differ from `rank` only on `axes`: those of Mesh::group.
  RankGrid(const Mesh& mesh, int rank, const std::vector<Axis>& axes);

  int size() const;
  /// How many of them are below `rank`: of a member its place in the group.
  int below(int rank) const;
  /// Up to 256 ranks are listed in order. Of more: the first, and for each axis, outer to inner, how many and how far
  /// apart: "0+512x8+4x1".
  std::string text() const;

 private:
  struct Side {
    int count, distance;
  };
  int first_;
  std::vector<Side> sides_;  // outer to inner, so that ranks are in order; counts above 1
};

/// The ranks that a text of RankGrid gives, in its order; at most `most` of them. Nothing for any other text.
std::optional<std::vector<int>> read_ranks(std::string_view text, size_t most);

}  // namespace tessera
