// What the planner does with the best of a search: each test fails without the pass that it names.
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/planner_toy.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/memory.h"

namespace tessera::plan {
namespace {

using toy::input, toy::kTwo, toy::machine;

constexpr int kBlocks = 12;

int64_t peak_of_keeping_all(const ModelSpec& spec) { return choose(spec, kTwo, input(0), machine()).memory.peak; }

/// Only activations may leave the device.
PlannerInput activations_alone(int64_t budget, int64_t host) {
  PlannerInput in = input(budget, host);
  in.parameters = in.gradients = in.states_tier = Tier::device;
  return in;
}

double seconds(const ModelSpec& spec, const Plan& plan, const Machine& machine) {
  return predict(spec, plan, machine).step.total;
}

TEST(SendInstead, BlocksSendInsteadOfComputingAgainAsFarAsTheHostHasRoom) {
  const ModelSpec spec = toy::dear_model(kBlocks);
  const int64_t whole = peak_of_keeping_all(spec);
  const int64_t host = whole / 8;  // of one block and not of two
  PlannerInput in = activations_alone(whole * 9 / 10, host);
  in.prefetch = 1, in.strategy = Strategy::shard_grad_op;  // slots would give the blocks room
  const Choice choice = choose(spec, kTwo, in, machine());
  ASSERT_TRUE(choice.fits) << choice.advice;
  EXPECT_LE(choice.memory.host.total(), host);
  // A search alone gives all blocks that save one way of saving: one that sends beside one that computes again is this.
  EXPECT_EQ(std::ranges::count(choice.plan.units, Policy::offload, &UnitPlan::activations), 1) << choice.plan.summary();
  EXPECT_EQ(std::ranges::count(choice.plan.units, Policy::recompute, &UnitPlan::activations), 1)
      << choice.plan.summary();
  Plan computing = choice.plan;
  for (UnitPlan& unit : computing.units)
    if (unit.activations == Policy::offload) unit.activations = Policy::recompute;
  EXPECT_LT(choice.seconds, seconds(spec, computing, machine()));
}

TEST(SendInstead, FewerBlocksDoWhereTheLinkIsTooSlowForAll) {
  const ModelSpec spec = toy::dear_model(kBlocks);
  Machine slow = machine();
  slow.profile.host_link /= 2000;  // a block's copy takes longer than the block
  const Choice choice = choose(spec, kTwo, activations_alone(peak_of_keeping_all(spec) / 2, 1 << 30), slow);
  ASSERT_TRUE(choice.fits) << choice.advice;
  EXPECT_GT(std::ranges::count(choice.plan.units, Policy::offload, &UnitPlan::activations), 0);
  EXPECT_GT(std::ranges::count(choice.plan.units, Policy::recompute, &UnitPlan::activations), 0);
}

TEST(TakeTurns, BlocksThatSendStandBetweenBlocksThatDoNotWhereCopiesTakeLongerThanABlock) {
  const ModelSpec spec = toy::dear_model(kBlocks);
  Machine slow = machine();
  slow.profile.host_link /= 4000;
  const Choice choice = choose(spec, kTwo, activations_alone(peak_of_keeping_all(spec) * 7 / 10, 1 << 30), slow);
  ASSERT_TRUE(choice.fits) << choice.advice;
  const std::vector<UnitPlan>& units = choice.plan.units;
  const auto sends = [](const UnitPlan& unit) { return unit.offloads(); };
  ASSERT_GE(std::ranges::count_if(units, sends), 2) << choice.plan.summary();
  const auto first = std::ranges::find_if(units, sends);
  EXPECT_FALSE(std::is_partitioned(first, units.end(), sends)) << "in one row: " << choice.plan.summary();
  Plan row = choice.plan;  // the same blocks, those that send first
  std::stable_partition(row.units.begin() + 1, row.units.end() - 1, sends);
  EXPECT_LT(choice.seconds, seconds(spec, row, slow));
}

/// A run whose updates come just in time begins with a step that has none, whose slots lie otherwise.
TEST(JustInTime, PlansTakeWhatTheFirstStepTakesToo) {
  int more = 0;
  for (int n = 0; n < 60; ++n) {
    toy::Random random(n);
    const ModelSpec spec = toy::random_model(random);
    PlannerInput in = input(0, 1 << 30);
    in.update = Update::just_in_time;
    in.prefetch = toy::draw(random, 0, 3);
    in.parameters = static_cast<Tier>(toy::draw(random, 0, 1));
    in.gradients = static_cast<Tier>(toy::draw(random, 0, 1));
    in.states_tier = static_cast<Tier>(toy::draw(random, 0, 1));
    const Choice choice = choose(spec, kTwo, in, machine());
    const RunSchedules all = compile_all(spec, choice.plan, 0, 0);
    const MemoryCurve run = memory_curve(spec, choice.plan, all.train, 0, all.arena(false), all.host_arena(false));
    EXPECT_EQ(choice.memory.peak, run.peak) << choice.plan.summary();
    EXPECT_EQ(choice.memory.host.total(), run.host.total()) << choice.plan.summary();
    more += all.first.arena > std::max(all.train.arena, all.updates.arena);
  }
  EXPECT_GT(more, 0) << "none has a first step that takes more";
}

}  // namespace
}  // namespace tessera::plan
