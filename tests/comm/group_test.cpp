// A group of one does what each collective means for one rank.
#include <gtest/gtest.h>

#include "tessera/comm/comm.h"

namespace tessera::comm {
namespace {

TEST(GroupOfOne, GathersAndReducesByCopying) {
  Comm comm({}, Mesh{});
  Group& group = comm.group("gather", kShardAxes);
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.axis(), "");
  const at::Tensor shard = at::arange(9'001, at::kFloat);
  at::Tensor out = at::zeros_like(shard), scratch = at::empty_like(shard);
  group.all_gather(out, shard);
  EXPECT_TRUE(out.equal(shard));
  group.reduce_scatter(out, shard, scratch, /*accumulate=*/false);
  EXPECT_TRUE(out.equal(shard));
  group.reduce_scatter(out, shard, scratch, /*accumulate=*/true);
  EXPECT_TRUE(out.equal(shard * 2));
  group.all_reduce(out);
  EXPECT_TRUE(out.equal(shard * 2));
  EXPECT_EQ(group.all_gather_doubles({1, 2}), (std::vector<std::vector<double>>{{1, 2}}));
  EXPECT_EQ(group.take_sent_bytes(), 0);
}

TEST(GroupOfOne, GathersAShardThatLiesAtItsPlace) {
  Comm comm({}, Mesh{});
  at::Tensor all = at::arange(64, at::kFloat);
  const at::Tensor expected = all.clone();
  comm.group("gather", kShardAxes).all_gather(all, all.narrow(0, 0, 64));
  EXPECT_TRUE(all.equal(expected));
}

TEST(GroupOfOne, IsTheSameGroupForTheSamePurpose) {
  Comm comm({}, Mesh{});
  EXPECT_EQ(&comm.group("gather", kShardAxes), &comm.group("gather", kShardAxes));
  EXPECT_NE(&comm.group("gather", kShardAxes), &comm.group("reduce", kShardAxes));
  comm.barrier();
  comm.check_agreement("recipe", "anything");
  EXPECT_TRUE(comm.take_sent_bytes().empty());
}

TEST(Windows, AreOpenedOnOnePlaceOfBlocksOfOneSizeWithinAMachine) {
  const WindowPlace place{1 << 20, 8192, 4096};
  const auto against = [&](WindowPlace other, bool one_machine = true) {
    return against_window({place, other}, {4, 6}, one_machine);
  };
  EXPECT_EQ(against(place), "");
  EXPECT_EQ(against(place, false), "its ranks are on several machines");
  EXPECT_EQ(against({0, 0, 4096}), "rank 6 has no memory that NCCL has taken");
  EXPECT_EQ(against({1 << 21, 8192, 4096}), "rank 6 has a block of 2097152 bytes, rank 4 of 1048576");
  EXPECT_EQ(against({1 << 20, 4096, 4096}), "rank 6 has its slots at byte 4096, rank 4 at 8192");
  EXPECT_EQ(against({1 << 20, 8192, 8192}), "rank 6 has slots of 8192 bytes, rank 4 of 4096");
  const WindowPlace odd{1 << 20, 256, 4096};
  EXPECT_EQ(against_window({odd, odd}, {0, 1}, true), "its slots begin at byte 256, which is no multiple of 4096");
}

}  // namespace
}  // namespace tessera::comm
