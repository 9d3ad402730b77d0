// Which NUMA nodes have the host memory of ranks, on machines that are made up.
#include "tessera/engine/store/node_parts.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

namespace tessera::engine {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

/// A rank whose GPU hangs on `node` of a machine with `free` GiB on each node; nodes of neighbouring numbers are near.
NodeShare rank(int64_t machine, int node, int64_t gib, const std::vector<int64_t>& free) {
  NodeShare share{.machine = machine, .node = node, .bytes = gib * kGiB};
  for (size_t n = 0; n < free.size(); ++n) {
    share.free[n] = free[n] * kGiB, share.room[n] = (free[n] + 5) * kGiB;
    share.distance[n] = 10 + 2 * std::abs(static_cast<int>(n) - node);
  }
  return share;
}
NodePart part(int node, int64_t gib) { return {node, gib * kGiB}; }

TEST(NodesOfHostMemory, AreTheGpusOwnAndForWhatHasNoRoomThereTheNearestThatHasSome) {
  const std::vector<int64_t> free = {10, 10, 3, 100};
  EXPECT_EQ(place_on_nodes({rank(1, 1, 10, free)}), (std::vector<NodeParts>{{part(1, 10)}}));
  EXPECT_EQ(place_on_nodes({rank(1, 1, 30, free)}),
            (std::vector<NodeParts>{{part(1, 10), part(0, 10), part(2, 3), part(3, 7)}}));
}

/// Who needs less than its part leaves it to the others; a node serves its own ranks first, whichever rank comes first.
TEST(NodesOfHostMemory, AreSharedAlikeByTheirRanks) {
  const std::vector<int64_t> free = {12, 12};
  EXPECT_EQ(place_on_nodes({rank(1, 0, 8, free), rank(1, 0, 2, free), rank(1, 0, 8, free), rank(1, 1, 6, free)}),
            (std::vector<NodeParts>{{part(0, 5), part(1, 3)}, {part(0, 2)}, {part(0, 5), part(1, 3)}, {part(1, 6)}}));
  EXPECT_EQ(place_on_nodes({rank(1, 0, 12, free), rank(2, 0, 12, free)}),
            (std::vector<NodeParts>{{part(0, 12)}, {part(0, 12)}}))
      << "two machines";
  NodeShare without = rank(1, 0, 100, free);
  without.node = -1;
  EXPECT_EQ(place_on_nodes({without}), std::vector<NodeParts>{{}});
}

TEST(NodesOfHostMemory, HaveWhatIsFreeNowhereWhereCachedFilesMakeRoom) {
  const std::vector<NodeShare> ranks = {rank(1, 1, 25, {10, 10})};
  const std::vector<NodeParts> parts = place_on_nodes(ranks);
  EXPECT_EQ(parts, (std::vector<NodeParts>{{part(1, 15), part(0, 10)}}));
  EXPECT_EQ(describe(ranks, parts).shortage, "") << "10 GiB of files make room";
  const std::vector<NodeShare> more = {rank(1, 1, 31, {10, 10})};
  EXPECT_EQ(
      describe(more, place_on_nodes(more)).shortage,
      "the NUMA nodes have 30.00 GiB that are free or hold cached files, and the host memory of its ranks is 31.00 GiB");
}

TEST(NodesOfHostMemory, AreToldWithWhatLiesFarAndTheBudgetThatFits) {
  const std::vector<int64_t> free = {90, 90};
  std::vector<NodeShare> ranks;
  for (int r = 0; r < 8; ++r) ranks.push_back(rank(r / 4, r % 4 / 2, 40, free));
  const NodeText near = describe(ranks, place_on_nodes(ranks));
  EXPECT_EQ(near.far, std::vector<std::string>());
  EXPECT_EQ(near.near,
            "80.00 GiB on NUMA node 0 of the machine of rank 0, 80.00 GiB on NUMA node 1 of the machine of rank 0, "
            "80.00 GiB on NUMA node 0 of the machine of rank 4, 80.00 GiB on NUMA node 1 of the machine of rank 4");
  ranks.clear();
  for (int r = 0; r < 4; ++r) ranks.push_back(rank(1, r == 0 ? 0 : 1, 40, free));
  ranks[2].free[1] = 96 * kGiB;  // read a little earlier
  const NodeText far = describe(ranks, place_on_nodes(ranks));
  EXPECT_EQ(far.near, "70.00 GiB on NUMA node 0, 90.00 GiB on NUMA node 1");
  EXPECT_EQ(far.far,
            std::vector<std::string>(
                {"NUMA node 1 has 90.00 GiB free, and the host memory of ranks 1, 2 and 3, whose GPUs hang on it, "
                 "is 120.00 GiB: it has 30.00 GiB on node 0, whose copies cross the link between the sockets; "
                 "lower plan.host_budget to 120.00 GiB, or end what uses that node's memory (numactl -H)"}));
}

/// Mappings take the parts in their order, and give them back; what was not counted is on the first node.
TEST(NodesOfHostMemory, AreTakenByMappings) {
  EXPECT_EQ(take_node_parts(kGiB), NodeParts{}) << "nobody has decided";
  set_node_parts({part(1, 4), part(0, 2)}, {{.number = 0}, {.number = 1}});
  const NodeParts first = take_node_parts(3 * kGiB), second = take_node_parts(2 * kGiB);
  EXPECT_EQ(first, (NodeParts{part(1, 3)}));
  EXPECT_EQ(second, (NodeParts{part(1, 1), part(0, 1)}));
  const NodeParts beyond = take_node_parts(5 * kGiB);
  EXPECT_EQ(beyond, (NodeParts{part(0, 1), part(1, 4)}));
  give_node_parts(beyond), give_node_parts(first);
  EXPECT_EQ(take_node_parts(4 * kGiB), (NodeParts{part(1, 3), part(0, 1)}));
  set_node_parts({}, {});
}

TEST(NodesOfHostMemory, AreTouchedAlsoWhereTheSystemHasNoSuchNode) {
  constexpr size_t kPage = 4096, kSize = size_t{8} << 20;
  set_node_parts({{1, 4 << 20}, {7, 4 << 20}}, {{.number = 1}, {.number = 7}});
  void* mapped = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_TRUE(touch_parts(mapped, kSize, take_node_parts(kSize)));
  std::vector<unsigned char> there(kSize / kPage);
  ASSERT_EQ(mincore(mapped, kSize, there.data()), 0);
  EXPECT_EQ(std::ranges::count_if(there, [](unsigned char page) { return page & 1; }),
            static_cast<std::ptrdiff_t>(there.size()));
  munmap(mapped, kSize);
  set_node_parts({}, {});
}

}  // namespace
}  // namespace tessera::engine
