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

}  // namespace
}  // namespace tessera::comm
