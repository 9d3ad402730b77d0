#pragma once
// The grid of ranks and its named axes, outer to inner: pp, dp_replicate, dp_shard, cp, sp, tp.
//
//   Mesh mesh = Mesh::parse("dp_replicate=2,dp_shard=4");
//   mesh.coordinate(rank, Axis::dp_shard);      // this rank's place on one axis
//   mesh.group(rank, {Axis::dp_shard});         // all ranks that share its other coordinates
#include <array>
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

}  // namespace tessera
