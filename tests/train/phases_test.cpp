#include "tessera/train/phases.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"

namespace tessera::train {
namespace {

using Steps = std::vector<std::vector<size_t>>;

std::vector<TrainedNetwork> two() {
  return {{.name = "student", .rate = {.name = "linear", .lr = 1, .total_steps = 4}, .clip = 0.1},
          {.name = "heads", .rate = {.lr = 0.5}}};
}

/// The networks of the next steps, of which the updates in `skips` (counted from 0) are skipped.
Steps walk(Phases& phases, int64_t steps, const std::vector<int64_t>& skips = {}) {
  Steps all;
  for (int64_t s = 0; s < steps; ++s) {
    all.push_back(phases.now());
    for (const size_t network : all.back()) phases.took(network, std::ranges::count(skips, s) == 0);
    phases.end_step();
  }
  return all;
}

TEST(Phases, TakeTurnsAndASkippedOneIsMadeAgain) {
  Phases phases(two(), in_turn(2));
  EXPECT_EQ(walk(phases, 6, {1, 2}), (Steps{{0}, {1}, {1}, {1}, {0}, {1}}));
  EXPECT_EQ(phases.turns(0), 2);
  EXPECT_EQ(phases.updates(1), 2);
  EXPECT_EQ(phases.describe(), "student 2 and heads 2 of 4 turns");
}

TEST(Phases, OneNetworkMayHaveEveryStepAndAnotherEveryFew) {
  Phases phases(two(), every(3));
  EXPECT_EQ(walk(phases, 5, {0}), (Steps{{0, 1}, {1}, {1}, {0, 1}, {1}})) << "the cycle goes on past a skipped one";
  EXPECT_EQ(phases.turns(0), 2);
  EXPECT_EQ(phases.updates(0), 1);
  EXPECT_EQ(phases.turns(1), 5);
}

TEST(Phases, RatesFollowTheTurnsOfTheirOwnNetwork) {
  Phases phases(two(), in_turn(2));
  const double first = phases.rate(0);
  walk(phases, 1);
  const double second = phases.rate(0);
  EXPECT_LT(second, first);
  phases.took(1, true), phases.end_step();
  EXPECT_EQ(phases.rate(0), second) << "the heads' steps are none of its own";
  EXPECT_EQ(phases.rate(1), 0.5);
}

TEST(Phases, GoOnBehindACheckpointWhereTheyWere) {
  Phases whole(two(), in_turn(2)), before(two(), in_turn(2)), after(two(), in_turn(2));
  walk(whole, 3), walk(before, 3);
  checkpoint::Manifest manifest;
  before.write(manifest);
  after.resume(manifest);
  EXPECT_EQ(walk(after, 4), walk(whole, 4));
  EXPECT_EQ(after.turns(0), whole.turns(0));
  EXPECT_EQ(after.rate(0), whole.rate(0));
}

TEST(Phases, RefuseAnotherRunsCheckpointAndAnOrderThatLeavesANetworkOut) {
  Phases phases(two(), in_turn(2));
  EXPECT_THROW(phases.resume(checkpoint::Manifest{}), UserError);
  checkpoint::Manifest manifest;
  phases.write(manifest);
  std::vector<TrainedNetwork> others = two();
  others[1].name = "critic";
  Phases of_others(others, in_turn(2));
  EXPECT_THROW(of_others.resume(manifest), UserError);
  EXPECT_THROW(Phases(two(), in_turn(1)), UserError);
  EXPECT_THROW(Phases(two(), in_turn(3)), UserError);
  EXPECT_THROW(Phases(two(), PhaseOrder{.cycle = {{0, 1}, {}}}), UserError);
}

}  // namespace
}  // namespace tessera::train
