#include "tessera/plan/search/layouts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <chrono>

#include "tessera/plan/search/scenario.h"

namespace tessera::plan {
namespace {

LayoutBounds bounds() { return {.world = 8, .node = 8, .heads = 12, .features = 64, .units = 6, .tokens = 100}; }

TEST(Mesh, AGroupHoldsTheRanksThatShareAllOtherCoordinatesInOrder) {
  const Mesh mesh = Mesh::parse("pp=2,dp_replicate=3,dp_shard=2,cp=2,tp=2");
  for (const std::vector<Axis>& axes : {std::vector<Axis>{},
                                        {Axis::tp},
                                        {Axis::dp_shard, Axis::cp},
                                        {Axis::cp, Axis::pp},
                                        {Axis::dp_replicate, Axis::sp, Axis::tp}})
    for (int rank = 0; rank < mesh.world(); ++rank) {
      std::vector<int> expected;
      for (int other = 0; other < mesh.world(); ++other)
        if (std::all_of(kAllAxes.begin(), kAllAxes.end(), [&](Axis a) {
              return std::find(axes.begin(), axes.end(), a) != axes.end() ||
                     mesh.coordinate(other, a) == mesh.coordinate(rank, a);
            }))
          expected.push_back(other);
      EXPECT_EQ(mesh.group(rank, axes), expected);
    }
}

TEST(Layouts, EveryWayOfSharingASampleUsesAllRanksAndNoneIsRefused) {
  const auto ways = sample_sharings(bounds(), 8);
  EXPECT_EQ(ways.front(), Mesh::parse("dp_shard=8")) << "fewest ranks a sample first";
  for (const Mesh& mesh : ways) {
    EXPECT_EQ(mesh.world(), 8) << mesh.to_string();
    EXPECT_FALSE(conflict(mesh, bounds())) << mesh.to_string();
    EXPECT_LE(mesh[Axis::sp] * mesh[Axis::tp], 4) << "12 heads";
    EXPECT_LE(mesh[Axis::pp], 4) << "6 units";
  }
  const auto has = [&](const char* mesh) { return std::count(ways.begin(), ways.end(), Mesh::parse(mesh)) == 1; };
  EXPECT_TRUE(has("pp=2,cp=2,tp=2") && has("cp=8") && has("dp_shard=2,sp=4") && has("dp_shard=2,sp=2,tp=2"));
  for (const Mesh& mesh : sample_sharings(bounds(), 2)) EXPECT_LE(mesh.dp_size(), 2) << "ranks without a sample idle";
}

TEST(Layouts, ShardsStayWithinANodeOrSpanSomeOrAll) {
  const auto text = [](const std::vector<Mesh>& meshes) {
    std::string all;
    for (const Mesh& mesh : meshes) all += (all.empty() ? "" : "; ") + mesh.to_string();
    return all;
  };
  EXPECT_EQ(text(shardings(Mesh::parse("dp_shard=64"), 8)),
            "dp_replicate=8,dp_shard=8; dp_replicate=2,dp_shard=32; dp_shard=64");
  EXPECT_EQ(text(shardings(Mesh::parse("dp_shard=16,sp=4"), 8)),
            "dp_replicate=8,dp_shard=2,sp=4; dp_replicate=2,dp_shard=8,sp=4; dp_shard=16,sp=4");
  EXPECT_EQ(text(shardings(Mesh::parse("dp_shard=8"), 8)), "dp_shard=8");
}

TEST(Layouts, AConflictNamesTheNearestValuesThatCanBe) {
  const auto found = [](const char* mesh) {
    const auto result = conflict(Mesh::parse(mesh), bounds());
    return result ? result->found + "; " + result->hint : "";
  };
  EXPECT_NE(found("sp=5").find("sp = 5 does not divide the model's 12 heads; use sp = 4 or sp = 6"), std::string::npos)
      << found("sp=5");
  EXPECT_NE(found("pp=7").find("6 units"), std::string::npos) << found("pp=7");
  EXPECT_NE(found("cp=128").find("it has 100"), std::string::npos) << found("cp=128");
  EXPECT_EQ(found("pp=2,cp=5,sp=3,tp=4"), "");
}

Scenario wan(int gpus, int64_t batch) {
  Scenario s;
  s.name = "Wan 14B";
  s.sizes = {.dim = 5120, .ffn_dim = 13824, .layers = 40, .text_tokens = 512};
  s.tokens = 32760;
  s.gpus = gpus, s.global_batch = batch;
  s.machine.profile = find_profile("h100");
  s.states = {Masters::split, Moments::int8};
  return s;
}

TEST(Layouts, ASearchOfEightRanksFindsOneThatFitsAndIsNoSlowerThanPlainSharding) {
  const auto start = std::chrono::steady_clock::now();
  const ScenarioResult best = run(wan(8, 8));
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 30);
  EXPECT_TRUE(best.fits);
  EXPECT_GT(best.layouts, 3);
  EXPECT_EQ(best.plan.mesh.world(), 8);
  Scenario plain = wan(0, 8);
  plain.mesh = Mesh::parse("dp_shard=8");
  plain.recompute = 40;  // fits as well
  EXPECT_TRUE(run(plain).fits);
  EXPECT_LE(best.seconds, run(plain).seconds);
}

/// Of 101B the first plan that fits computes most blocks again on any mesh: what more ranks a sample have room for, only
/// plans made for their meshes tell.
TEST(Layouts, ASearchIsNoSlowerThanThePlanMadeForAnyDegreeOfTheRing) {
  Scenario s = wan(256, 64);
  s.sizes = {.dim = 10240, .ffn_dim = 27648, .layers = 72, .text_tokens = 512, .kept = 23, .selective = 14};
  s.tokens = 75600, s.wire = 0.5;
  const ScenarioResult best = run(s);
  EXPECT_TRUE(best.fits);
  int fitted = 0;
  for (const char* mesh : {"dp_shard=32,cp=8", "dp_shard=16,cp=16", "dp_shard=8,cp=32", "dp_shard=4,cp=64"}) {
    Scenario there = s;
    there.gpus = 0, there.search = true, there.mesh = Mesh::parse(mesh);
    const ScenarioResult own = run(there);
    fitted += own.fits;
    if (own.fits)
      EXPECT_LE(best.seconds, own.seconds * (1 + 1e-9)) << mesh << " against " << best.plan.mesh.to_string();
  }
  EXPECT_GE(fitted, 3);
}

TEST(Layouts, RanksBeyondTheSamplesShareThem) {
  const ScenarioResult best = run(wan(16, 4));
  EXPECT_LE(best.plan.mesh.dp_size(), 4);
  EXPECT_GE(sequence_size(best.plan.mesh) * best.plan.mesh[Axis::pp], 4);
}

}  // namespace
}  // namespace tessera::plan
