// What a rank makes of an environment after a fault: fewer ranks, and faults on purpose.
#include "tessera/train/elastic.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"
#include "tessera/train/rank_watch.h"

namespace tessera::train {
namespace {

std::string shrunk(const char* asked, int all, int left) {
  comm::Rendezvous place;
  place.world = left, place.asked_world = all;
  return elastic_mesh(Mesh::parse(asked), place).to_string();
}

TEST(ElasticMesh, IsTheUsualOneWhileAllAreThere) {
  EXPECT_EQ(shrunk("dp_shard=1", 4, 4), "dp_shard=4");
  EXPECT_EQ(shrunk("dp_replicate=2", 0, 4), "dp_replicate=2,dp_shard=2");
}

TEST(ElasticMesh, ShardsOverFewerRanks) {
  EXPECT_EQ(shrunk("dp_shard=8", 8, 4), "dp_shard=4");
  EXPECT_EQ(shrunk("dp_shard=1", 6, 4), "dp_shard=4");
  EXPECT_EQ(shrunk("dp_replicate=2,dp_shard=4", 8, 6), "dp_replicate=2,dp_shard=3");
}

TEST(ElasticMesh, GivesUpReplicasWhereShardsDoNotGo) {
  EXPECT_EQ(shrunk("dp_replicate=2,dp_shard=2", 4, 1), "single");
  EXPECT_EQ(shrunk("dp_replicate=4,dp_shard=1", 4, 2), "dp_replicate=2");
}

TEST(InjectedFault, IsReadAsItIsWritten) {
  const InjectedFault fault = InjectedFault::parse("rank=1,step=3,op=reduce,unit=blocks.1,do=stop,attempt=2");
  EXPECT_EQ(fault.rank, 1);
  EXPECT_EQ(fault.step, 3);
  EXPECT_EQ(fault.op, "reduce");
  EXPECT_EQ(fault.unit, "blocks.1");
  EXPECT_EQ(fault.act, "stop");
  EXPECT_EQ(fault.attempt, 2);
  EXPECT_EQ(InjectedFault::parse("rank=0,do=0.25").seconds, 0.25);
  for (const char* text : {"rank=x,do=kill", "rank=1,do=jump", "rank=1", "colour=red,do=kill", "step=,do=kill"})
    EXPECT_THROW(InjectedFault::parse(text), UserError) << text;
}

}  // namespace
}  // namespace tessera::train
