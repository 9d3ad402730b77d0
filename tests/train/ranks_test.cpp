// What a rank makes of an environment after a fault (fewer ranks, and faults on purpose), and what ranks do together.
#include "tessera/train/ranks.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"

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

TEST(Ranks, OneAloneIsTheFirstAndHearsItself) {
  Ranks ranks({}, {}, 60);
  EXPECT_TRUE(ranks.first());
  EXPECT_TRUE(ranks.of_first(true));
  EXPECT_FALSE(ranks.of_first(false));
  EXPECT_EQ(ranks.of_first(std::string("a plan\nof two lines")), "a plan\nof two lines");
  EXPECT_EQ(ranks.of_first(std::string()), "");
  EXPECT_EQ(ranks.gather({3, 4}), (std::vector<std::vector<double>>{{3, 4}}));
}

TEST(Ranks, WhatTheFirstDoesIsDoneBeforeTheOthersGoOnAndItsErrorIsItsOwn) {
  Ranks ranks({}, {}, 60);
  int acts = 0, meetings = 0;
  ranks.first_acts(3, "writing", "waiting", [&] {
    ++acts;
    EXPECT_NE(ranks.watch.where().find("at step 3: writing"), std::string::npos) << ranks.watch.where();
  });
  EXPECT_EQ(acts, 1);
  ranks.wait_for_slowest([&](prepare::Pace& pace) {
    ranks.meet(pace);
    ++meetings;
  });
  EXPECT_EQ(meetings, 1);
  try {
    ranks.first_acts(4, "writing", "waiting", [] { throw UserError(Exit::disk, "out", "no room left"); });
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::disk) << "no other rank failed";
  }
}

}  // namespace
}  // namespace tessera::train
