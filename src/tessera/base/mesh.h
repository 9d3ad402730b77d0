#pragma once
// The grid of ranks and its named axes, outer to inner: pp, dp_replicate, dp_shard, cp, sp, tp.
//
//   Mesh mesh = Mesh::parse("dp_replicate=2,dp_shard=4");
//   mesh.coordinate(rank, Axis::dp_shard);      // this rank's place on one axis
//   mesh.group(rank, {Axis::dp_shard});         // all ranks that share its other coordinates
//
// The ranks of a group as what they are on a mesh, a grid: a first rank, and a count and a distance for each axis. Nothing
// here takes time or memory by their number, but for the lists that are asked for.
//
//   const RankGrid grid(mesh, rank, {Axis::dp_shard, Axis::cp});
//   grid.text();                                               // "0,2,4,6", "0+131072x1"
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class Axis { pp, dp_replicate, dp_shard, cp, sp, tp };
inline constexpr int kAxes = 6;
inline constexpr std::array<Axis, kAxes> kAllAxes = {Axis::pp, Axis::dp_replicate, Axis::dp_shard,
                                                     Axis::cp, Axis::sp,           Axis::tp};
std::string_view axis_name(Axis axis);

struct Mesh {
  std::array<int, kAxes> size = {1, 1, 1, 1, 1, 1};

  /// "dp_shard=2,dp_replicate=2"; absent axes are 1. Throws UserError (usage) naming the nearest axis.
  static Mesh parse(std::string_view text);
  std::string to_string() const;  ///< only axes above 1; "single" when there are none
  bool operator==(const Mesh&) const = default;

  int operator[](Axis axis) const { return size[static_cast<int>(axis)]; }
  int& operator[](Axis axis) { return size[static_cast<int>(axis)]; }
  int world() const;
  int dp_size() const { return (*this)[Axis::dp_replicate] * (*this)[Axis::dp_shard]; }
  /// dp_shard x cp x sp: the number of ranks that a buffer is sharded over.
  int shard_size() const { return (*this)[Axis::dp_shard] * (*this)[Axis::cp] * (*this)[Axis::sp]; }

  int coordinate(int rank, Axis axis) const;
  int dp_rank(int rank) const;
  int shard_rank(int rank) const;
  /// Ranks that differ from `rank` only on `axes`, in order.
  std::vector<int> group(int rank, const std::vector<Axis>& axes) const;
};

inline const std::vector<Axis> kShardAxes = {Axis::dp_shard, Axis::cp, Axis::sp};

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
