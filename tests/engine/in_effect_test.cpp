#include "tessera/engine/in_effect.h"

#include <gtest/gtest.h>

#include "plan/toy.h"
#include "tessera/engine/exposed.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/plan_hash.h"

namespace tessera::engine {
namespace {

/// Of a step in which copies and collectives take a second each, and what computes ten.
InEffect effect_of(const plan::Plan& plan, const plan::ModelSpec& spec) {
  const plan::Schedule schedule = plan::compile_train(spec, plan, 0);
  std::vector<std::array<double, 2>> times;
  std::array<double, plan::kLaneCount> free{};
  for (const plan::Instruction& in : schedule.list) {
    double& lane = free[static_cast<size_t>(in.lane)];
    double begin = lane;
    for (const int w : in.wait) begin = std::max(begin, times[static_cast<size_t>(w)][1]);
    lane = begin + (in.lane == plan::Lane::compute ? 10 : 1);
    times.push_back({begin, lane});
  }
  return in_effect(schedule.list, times, waited_for(schedule.list, times));
}

struct Effect : ::testing::Test {
  plan::ModelSpec spec = plan::toy::model(4);
  plan::Plan plan = plan::toy::plan(spec, "dp_shard=2", 2, 1, 1);
  InEffect effect() const { return effect_of(plan, spec); }
};

TEST_F(Effect, OfEachMechanismIsGoneWhereItIsSwitchedOff) {
  EXPECT_EQ(effect().units, 6);
  EXPECT_EQ(effect().recomputed + effect().offloaded + effect().compressed + effect().fetches.all, 0);
  plan.units[1].activations = plan::Policy::recompute;
  EXPECT_EQ(effect().recomputed, 1);
  plan.units[2].activations = plan.units[3].activations = plan::Policy::offload;
  EXPECT_EQ(effect().offloaded, 2);
  EXPECT_EQ(effect().stashes.all, 2);
  EXPECT_EQ(effect().fetches.all, 2);
  EXPECT_NE(effect().text().find("recomputed 1 of 6 units; offloaded activations of 2 of 6 units; "), std::string::npos)
      << effect().text();
  for (auto& unit : plan.units) unit.states = plan::Tier::host, unit.update_on = plan::Tier::host;
  EXPECT_EQ(effect().host_updates, 6);
  EXPECT_EQ(effect().early_updates + effect().late_updates, 0);
  plan.update = plan::Update::in_backward;
  EXPECT_EQ(effect().early_updates, 6);
  plan.update = plan::Update::just_in_time;
  EXPECT_EQ(effect().late_updates, 6);
}

TEST_F(Effect, GathersAreHiddenOnlyWhereTheyAreAhead) {
  const auto gathers = effect().gathers;
  EXPECT_GT(gathers.hidden, 0);
  EXPECT_LT(gathers.hidden, gathers.all) << "nothing can hide the first";
  plan.prefetch = 0;
  EXPECT_LT(effect().gathers.hidden, gathers.hidden);
}

TEST_F(Effect, PlansThatDifferHaveDifferentHashes) {
  const std::string before = plan::plan_hash(plan);
  EXPECT_EQ(before.size(), 16u);
  EXPECT_EQ(plan::plan_hash(plan), before);
  plan.units[3].activations = plan::Policy::recompute;
  EXPECT_NE(plan::plan_hash(plan), before);
}

}  // namespace
}  // namespace tessera::engine
