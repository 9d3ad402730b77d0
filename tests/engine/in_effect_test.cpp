#include "tessera/engine/step_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "engine/toy_engine.h"
#include "plan/toy.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/plan_file.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::engine {
namespace {

std::vector<bool> blocks_of(const plan::ModelSpec& spec) {
  std::vector<bool> blocks;
  for (const plan::UnitSpec& unit : spec.units) blocks.push_back(plan::is_block(unit));
  return blocks;
}

/// Of a compiled step in which copies and collectives take a second each, and what computes ten.
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
  return in_effect(schedule.list, times, waited_for(schedule.list, times), blocks_of(spec));
}

/// The second step of a model of four blocks, executed.
struct Executed {
  explicit Executed(const std::function<void(plan::Plan&)>& change = {}) {
    const toy::Toy model(4);
    plan::Plan plan = model.plan();
    if (change) change(plan);
    toy::ToyRank rank(model, plan);
    rank.step(1);
    rank.engine().times().keep_lines(true);
    rank.step(2);
    did = rank.engine().times().last_effect();
    lines = rank.engine().times().last_lines();
  }
  /// Lines of the trace that hold the text.
  int traced(const std::string& text) const {
    return static_cast<int>(
        std::ranges::count_if(lines, [&](const std::string& line) { return line.find(text) != line.npos; }));
  }
  InEffect did;
  std::vector<std::string> lines;
};

/// Its count, its words in the line for people, and what its instructions are in the trace.
struct Mechanism {
  const char* name;
  std::function<void(plan::Plan&)> on;
  std::function<int(const InEffect&)> count;
  int wanted;
  std::string words, instruction;
};

TEST(Effect, OfEachMechanismIsInTheExecutedTraceAndGoneWhereItIsSwitchedOff) {
  const auto of_blocks = [](plan::Policy policy, std::vector<size_t> units) {
    return [=](plan::Plan& plan) {
      for (const size_t u : units) plan.units[u].activations = policy;
    };
  };
  const std::vector<Mechanism> mechanisms = {
      {"recompute", of_blocks(plan::Policy::recompute, {1, 3}), &InEffect::recomputed, 2, "recomputed 2 of 4 blocks",
       R"("op":"recompute")"},
      {"offload", of_blocks(plan::Policy::offload, {1, 2, 3}), &InEffect::offloaded, 3,
       "offloaded activations of 3 of 4 blocks", R"("part":"activations")"},
      {"quantise", of_blocks(plan::policy_of("int8", "test"), {2}), &InEffect::compressed, 1,
       "compressed activations of 1 of 4 blocks", R"("op":"compress")"},
      {"states on the host",
       [](plan::Plan& plan) {
         for (plan::UnitPlan& unit : plan.units) unit.states = plan::Tier::host;
       },
       [](const InEffect& did) { return did.fetches.all; }, 6, "of 6 fetches hidden", R"("part":"states")"},
      {"updates on the host",
       [](plan::Plan& plan) {
         for (plan::UnitPlan& unit : plan.units)
           unit.parameters = unit.gradients = unit.states = unit.update_on = plan::Tier::host;
       },
       &InEffect::host_updates, 6, "6 updates on the host", R"("lane":"host")"},
      {"in the backward", [](plan::Plan& plan) { plan.update = plan::Update::in_backward; }, &InEffect::early_updates,
       6, "6 updates in the backward", ""},
      {"just in time", [](plan::Plan& plan) { plan.update = plan::Update::just_in_time; }, &InEffect::late_updates, 6,
       "6 updates of the step before just in time", ""}};
  const Executed off;
  EXPECT_EQ(off.did.blocks, 4);
  EXPECT_EQ(off.did.text().find(';'), std::string::npos)
      << "nothing but gathers, which one rank makes in place: " << off.did.text();
  for (const Mechanism& mechanism : mechanisms) {
    const Executed on(mechanism.on);
    EXPECT_EQ(mechanism.count(off.did), 0) << mechanism.name;
    EXPECT_EQ(mechanism.count(on.did), mechanism.wanted) << mechanism.name;
    EXPECT_NE(on.did.text().find(mechanism.words), std::string::npos) << mechanism.name << ": " << on.did.text();
    if (mechanism.instruction.empty()) continue;
    EXPECT_GT(on.traced(mechanism.instruction), 0) << mechanism.name;
    EXPECT_EQ(off.traced(mechanism.instruction), 0) << mechanism.name;
  }
}

TEST(Effect, UpdatesInTheBackwardAreFewAtATimeAndOthersAllTogether) {
  const auto pending = [](plan::Update when) {
    return Executed([&](plan::Plan& plan) { plan.update = when; }).did.pending;
  };
  EXPECT_EQ(pending(plan::Update::end), 6);
  EXPECT_EQ(pending(plan::Update::just_in_time), 6) << "those of the step before";
  EXPECT_LE(pending(plan::Update::in_backward), 2) << "the next backward may end first";
}

struct EffectOnRanks : ::testing::Test {
  plan::ModelSpec spec = plan::toy::model(4);
  plan::Plan plan = plan::toy::plan(spec, "dp_shard=2", 2, 1, 1);
  InEffect effect() const { return effect_of(plan, spec); }
};

TEST_F(EffectOnRanks, GathersAreHiddenOnlyWhereTheyAreAhead) {
  const auto gathers = effect().gathers;
  EXPECT_GT(gathers.hidden, 0);
  EXPECT_LT(gathers.hidden, gathers.all) << "nothing can hide the first";
  plan.prefetch = 0;
  EXPECT_LT(effect().gathers.hidden, gathers.hidden);
}

TEST_F(EffectOnRanks, PlansThatDifferHaveDifferentHashes) {
  const std::string before = plan::plan_hash(plan);
  EXPECT_EQ(before.size(), 16u);
  EXPECT_EQ(plan::plan_hash(plan), before);
  plan.units[3].activations = plan::Policy::recompute;
  EXPECT_NE(plan::plan_hash(plan), before);
}

}  // namespace
}  // namespace tessera::engine
