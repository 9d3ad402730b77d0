#include "tessera/base/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera {
namespace {

using Ranks = std::vector<int>;

TEST(RankGrid, HasTheRanksOfTheMeshsGroup) {
  const Mesh mesh = Mesh::parse("pp=2,dp_replicate=2,dp_shard=3,cp=2,tp=2");
  for (unsigned chosen = 0; chosen < 1u << kAxes; ++chosen) {
    std::vector<Axis> axes;
    for (int a = 0; a < kAxes; ++a)
      if (chosen >> a & 1) axes.push_back(kAllAxes[static_cast<size_t>(a)]);
    for (int rank = 0; rank < mesh.world(); ++rank) {
      const RankGrid grid(mesh, rank, axes);
      const Ranks ranks = mesh.group(rank, axes);
      EXPECT_EQ(grid.size(), static_cast<int>(ranks.size()));
      EXPECT_EQ(read_ranks(grid.text(), 1000), ranks) << grid.text();
      for (int other = -1; other <= mesh.world() + 1; ++other)
        EXPECT_EQ(grid.below(other), std::ranges::count_if(ranks, [&](int r) { return r < other; })) << other;
    }
  }
}

TEST(RankGrid, ListsFewRanksAndTellsManyByTheirAxes) {
  EXPECT_EQ(RankGrid(Mesh::parse("dp_shard=4,tp=2"), 3, {Axis::dp_shard}).text(), "1,3,5,7");
  EXPECT_EQ(RankGrid(Mesh::parse("dp_shard=131072"), 77, {Axis::dp_shard}).text(), "0+131072x1");
  const Mesh mesh = Mesh::parse("dp_replicate=4,dp_shard=128,cp=3,sp=2");
  const RankGrid grid(mesh, 5, {Axis::dp_replicate, Axis::dp_shard, Axis::sp});
  EXPECT_EQ(grid.text(), "4+4x768+128x6+2x1");
  EXPECT_EQ(read_ranks(grid.text(), 1024), mesh.group(5, {Axis::dp_replicate, Axis::dp_shard, Axis::sp}));
  EXPECT_FALSE(read_ranks(grid.text(), 1023));
}

TEST(RankGrid, ReadsNothingElse) {
  for (const char* text : {"", ",", "1,", "-1", "1,-2", "1+", "1+2", "1+2x", "1+1x1", "1,2+2x1", "1+2x1,2", "1 2", "a",
                           "1+3x2147483647", "99999999999", "0+2147483647x1"})
    EXPECT_FALSE(read_ranks(text, 1000)) << text;
  EXPECT_FALSE(read_ranks("1,2,3", 2));
  EXPECT_EQ(read_ranks("7", 1), Ranks{7});
}

}  // namespace
}  // namespace tessera
