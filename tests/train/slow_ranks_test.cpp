#include "tessera/train/observers.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

Mesh mesh(const char* text) { return Mesh::parse(text); }

/// After so many steps of the same times.
void pass(SlowRanks& slow, int steps, const std::vector<double>& seconds) {
  for (int i = 0; i < steps; ++i) slow.step(seconds);
}

TEST(SlowRanks, NamesAPersistentlySlowRankOnce) {
  SlowRanks slow(mesh("dp_shard=4"), {.factor = 1.3, .steps = 5});
  pass(slow, 1, {0, 0, 0, 0});  // the first report has no step behind it
  pass(slow, 4, {0.1, 0.1, 0.2, 0.1});
  EXPECT_TRUE(slow.found().empty()) << "too few steps to say";
  pass(slow, 1, {0.1, 0.1, 0.2, 0.1});
  const auto found = slow.found();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_EQ(found[0].text(),
            "rank 2 is slow: over the last 5 steps a sample took it 0.2 s, 2.00 times the others' 0.1 s");
  pass(slow, 5, {0.1, 0.1, 0.2, 0.1});
  EXPECT_TRUE(slow.found().empty());
  pass(slow, 5, {0.1, 0.1, 0.1, 0.1});
  EXPECT_TRUE(slow.found().empty());
  pass(slow, 5, {0.1, 0.1, 0.2, 0.1});
  EXPECT_EQ(slow.found().size(), 1u) << "it had recovered";
}

TEST(SlowRanks, ARankAtTheLimitIsNamedOnce) {
  SlowRanks slow(mesh("dp_shard=4"), {.factor = 1.3, .steps = 3});
  size_t named = 0;
  for (int round = 0; round < 10; ++round) {
    pass(slow, 3, {0.1, 0.1, round % 2 ? 0.129 : 0.131, 0.1});
    named += slow.found().size();
  }
  EXPECT_EQ(named, 1u);
}

/// Two ranks on a busy machine: now one is slow, now the other, for hours.
TEST(SlowRanks, ThatKeepChangingAreNamedAFewTimes) {
  SlowRanks slow(mesh("dp_shard=2"), {.factor = 1.3, .steps = 20});
  size_t named = 0;
  for (int step = 0; step < 20'000; ++step) {
    const bool first = step / 25 % 2 == 0;
    slow.step({first ? 0.15 : 0.1, first ? 0.1 : 0.15});
    named += slow.found().size();
  }
  EXPECT_GE(named, 2u) << "both";
  EXPECT_LE(named, 8u);
}

TEST(SlowRanks, ThatWereWellForLongAreNamedAgain) {
  SlowRanks slow(mesh("dp_shard=2"), {.factor = 1.3, .steps = 5});
  const auto named = [&](int steps, double seconds) {
    size_t count = 0;
    for (int i = 0; i < steps; ++i) slow.step({0.1, seconds}), count += slow.found().size();
    return count;
  };
  EXPECT_EQ(named(10, 0.2), 1u);
  EXPECT_EQ(named(10, 0.1), 0u);
  EXPECT_EQ(named(10, 0.2), 1u) << "the first recovery counts at once";
  EXPECT_EQ(named(4, 0.1), 0u);
  EXPECT_EQ(named(10, 0.2), 0u) << "the second only when it lasts";
  EXPECT_EQ(named(20, 0.1), 0u);
  EXPECT_EQ(named(10, 0.2), 1u);
}

TEST(SlowRanks, OfTwoTheFasterIsTheMeasure) {
  SlowRanks slow(mesh("dp_shard=2"), {.factor = 1.3, .steps = 3});
  pass(slow, 3, {0.3, 0.1});
  ASSERT_EQ(slow.found().size(), 1u);
}

TEST(SlowRanks, ForgivesSingleSlowSteps) {
  SlowRanks slow(mesh("dp_shard=2"), {.factor = 1.3, .steps = 5});
  for (int i = 0; i < 20; ++i) slow.step({0.1, i % 3 == 0 ? 0.9 : 0.1});
  EXPECT_TRUE(slow.found().empty());
}

TEST(SlowRanks, ComparesStepsOfDifferentShapesByTheirRatio) {
  SlowRanks slow(mesh("dp_shard=2"), {.factor = 1.3, .steps = 4});
  for (double size : {0.1, 2.0, 0.4, 1.0}) slow.step({size, size * 1.5});
  const auto found = slow.found();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NEAR(found[0].factor, 1.5, 1e-9);
}

TEST(SlowRanks, ComparesOnlyRanksOfTheSameStage) {
  SlowRanks slow(mesh("pp=2,dp_shard=2"), {.factor = 1.3, .steps = 2});
  pass(slow, 2, {0.1, 0.1, 0.4, 0.4});  // the second stage has more units
  EXPECT_TRUE(slow.found().empty());
}

TEST(SlowRanks, FindsNothingWhereItIsSwitchedOff) {
  SlowRanks slow(mesh("dp_shard=2"), {.factor = 0, .steps = 2});
  pass(slow, 5, {0.1, 5});
  EXPECT_TRUE(slow.found().empty());
  EXPECT_FALSE(slow.better_shares({}));
}

TEST(SlowRanks, ProposesSharesThatShortenTheStepAndStaysWithThem) {
  SlowRanks slow(mesh("dp_shard=2"), {.factor = 1.3, .steps = 3});
  plan::Plan plan;
  plan.mesh = mesh("dp_shard=2");
  plan.global_batch = 6;
  pass(slow, 3, {0.1, 0.2});
  const auto shares = slow.better_shares(plan);
  ASSERT_TRUE(shares);
  EXPECT_EQ(*shares, (std::vector<int64_t>{4, 2}));
  plan.shares = *shares;
  EXPECT_FALSE(slow.better_shares(plan)) << "nothing was seen under the new shares";
  pass(slow, 3, {0.1, 0.2});
  EXPECT_FALSE(slow.better_shares(plan)) << "they are the best already";
  pass(slow, 3, {0.1, 0.1});
  EXPECT_EQ(slow.better_shares(plan), (std::vector<int64_t>{3, 3})) << "it recovered";
}

TEST(SlowRanks, ThatShareSamplesAreAsSlowAsTheSlowestOfThem) {
  SlowRanks slow(mesh("dp_shard=2,sp=2"), {.factor = 1.3, .steps = 1});
  plan::Plan plan;
  plan.mesh = mesh("dp_shard=2,sp=2");
  plan.global_batch = 6;
  slow.step({0.1, 0.1, 0.1, 0.2});
  EXPECT_EQ(slow.better_shares(plan), (std::vector<int64_t>{4, 2}));
}

}  // namespace
}  // namespace tessera::train
