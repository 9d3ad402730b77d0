// What a recipe sets for some units: it stays as it was set, the planner chooses the rest.
#include "tessera/plan/unit_keys.h"
#include "tessera/plan/plan_file.h"

#include <gtest/gtest.h>

#include "plan/planner_toy.h"
#include "tessera/base/check.h"
#include "tessera/plan/compile/run_walk.h"

namespace tessera::plan {
namespace {

using toy::input, toy::kTwo, toy::machine;

UnitKeys keys(const std::string& text) { return unit_keys_of(text, "recipe: plan.units"); }

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    return error.what();
  }
  return "accepted";
}

std::string refusal(const std::string& text) {
  return refusal([&] { keys(text); });
}

void expect_words(const std::string& text, const std::vector<std::string>& all) {
  for (const std::string& words : all)
    EXPECT_NE(text.find(words), std::string::npos) << words << " is not in: " << text;
}

/// Two experts, each on half of the steps, on two ranks.
PlannerInput two_experts(const std::vector<std::string>& units, int64_t budget = 0) {
  PlannerInput in = input(budget);
  in.experts = 2, in.expert_names = {"high_noise", "low_noise"};
  for (const std::string& text : units) in.units.push_back(keys(text));
  return in;
}

TEST(UnitKeys, ATableIsALineOfMatchAndKeys) {
  const UnitKeys found = keys("blocks.0-3 strategy=shard_grad_op activations=recompute sites.attn=keep");
  EXPECT_EQ(found.match, "blocks.0-3");
  EXPECT_EQ(found.keys, (std::vector<std::pair<std::string, std::string>>{
                            {"strategy", "shard_grad_op"}, {"activations", "recompute"}, {"sites.attn", "keep"}}));
  expect_words(refusal("blocks.*"), {"recipe: plan.units", "sets nothing"});
  expect_words(refusal("blocks.* shard_grad_op"), {"'shard_grad_op' is not KEY=VALUE"});
  expect_words(refusal("blocks.* stratgy=full_shard"), {"stratgy: unknown key", "did you mean"});
  expect_words(refusal("blocks.* strategy=shard_grads"), {"strategy", "shard_grad_op"});
  expect_words(refusal("blocks.* sites.attn=keep"), {"sites without activations"});
  expect_words(refusal("blocks.* update_on=host states=device"), {"update_on", "states"});
}

TEST(UnitKeys, APatternThatMatchesNothingIsRefusedWithTheUnitsThatThereAre) {
  const ModelSpec spec = toy::dear_model();
  PlannerInput in = two_experts({"blocks.4-9 strategy=shard_grad_op"});
  const auto refused = [&] { return refusal([&] { choose(spec, kTwo, in, machine()); }); };
  expect_words(refused(), {"match = \"blocks.4-9\": no unit of the model is named so",
                           "stem, blocks.0-5, head; of one expert: high_noise. or low_noise."});
  in = two_experts({"middle_noise.* strategy=shard_grad_op"});
  expect_words(refused(), {"middle_noise.*"});
  in = two_experts({"blocks.* activations=recompute sites.nose=keep"});
  expect_words(refused(), {"has no site 'nose'"});
  in = two_experts({"low_noise.head parameters=host"});
  expect_words(refused(), {"\"low_noise.head\" has parameters, and all experts use the same buffers",
                           "parameters with match = \"head\""});
  in = two_experts({"low_noise.blocks.* strategy=no_shard"});
  expect_words(refused(), {"expert 1 has no_shard, the first expert", "full_shard, shard_grad_op or shard_states"});
}

TEST(UnitKeys, WhatWasSetStaysAndTheRestIsChosen) {
  const ModelSpec spec = toy::dear_model();
  const Choice free = choose(spec, kTwo, input(0), machine());
  const int64_t budget = free.memory.peak * 4 / 5;
  PlannerInput in = input(budget, 1 << 30);
  in.units = {keys("blocks.* strategy=full_shard"), keys("blocks.2 strategy=shard_grad_op states=host"),
              keys("blocks.4-5 activations=keep")};
  const Choice choice = choose(spec, kTwo, in, machine());
  ASSERT_TRUE(choice.fits) << choice.advice;
  EXPECT_LE(choice.memory.peak, budget);
  int saving = 0;
  for (size_t u = 0; u < spec.units.size(); ++u) {
    const std::string& name = spec.units[u].name;
    const UnitPlan& unit = choice.plan.units[u];
    if (name == "blocks.2") {
      EXPECT_EQ(unit.strategy, Strategy::shard_grad_op);
      EXPECT_EQ(unit.states, Tier::host);
    } else if (name.starts_with("blocks.")) {
      EXPECT_EQ(unit.strategy, Strategy::full_shard) << name;
    }
    if (name == "blocks.4" || name == "blocks.5")
      EXPECT_TRUE(unit.activations == Policy::keep && unit.sites.empty()) << name;
    else
      saving += unit.activations != Policy::keep;
  }
  EXPECT_GT(saving, 0) << "the others give the memory that is missing";
  for (const Candidate& candidate : choice.candidates)
    EXPECT_EQ(candidate.plan.units[3].strategy, Strategy::shard_grad_op) << candidate.plan.summary();
}

TEST(UnitKeys, ALaterTableOverridesAndUpdatesOnTheHostTakeTheirBuffersThere) {
  const ModelSpec spec = toy::dear_model();
  PlannerInput in = input(0, 1 << 30);
  in.strategy = Strategy::full_shard;
  in.units = {keys("* reshard_after_forward=false"), keys("blocks.1 reshard_after_forward=true update_on=host")};
  const Choice choice = choose(spec, kTwo, in, machine());
  ASSERT_TRUE(choice.fits) << choice.advice;
  for (size_t u = 0; u < spec.units.size(); ++u) {
    const UnitPlan& unit = choice.plan.units[u];
    EXPECT_EQ(unit.strategy, u == 2 ? Strategy::full_shard : Strategy::shard_grad_op);
    EXPECT_EQ(unit.update_on, u == 2 ? Tier::host : Tier::device);
    if (u == 2) EXPECT_TRUE(unit.parameters == Tier::host && unit.gradients == Tier::host && unit.states == Tier::host);
  }
}

TEST(UnitsOfExperts, EachExpertHasItsOwnStrategyAndThePlanThePriceOfBoth) {
  const ModelSpec spec = toy::dear_model();
  PlannerInput in = two_experts(
      {"high_noise.blocks.* strategy=shard_grad_op", "low_noise.* strategy=full_shard activations=recompute"});
  in.expert_shares = {1, 3};
  const Choice choice = choose(spec, kTwo, in, machine());
  ASSERT_TRUE(choice.fits) << choice.advice;
  const Plan first = choice.plan.as_of(0), second = choice.plan.as_of(1);
  for (size_t u = 0; u < spec.units.size(); ++u) {
    if (spec.units[u].kind == "block") EXPECT_EQ(first.units[u].strategy, Strategy::shard_grad_op);
    EXPECT_EQ(first.units[u].activations, Policy::keep);
    EXPECT_EQ(second.units[u].strategy, Strategy::full_shard);
    EXPECT_EQ(second.units[u].activations, Policy::recompute);
  }
  const double a = predict(spec, first, machine()).step.total, b = predict(spec, second, machine()).step.total;
  ASSERT_LT(a, b) << "recompute costs time";
  EXPECT_NEAR(choice.seconds, (a + 3 * b) / 4, 1e-12 * b);
  EXPECT_NE(choice.plan.summary().find("expert 1 with other units"), std::string::npos) << choice.plan.summary();
  // the memory is that of the expert that needs more
  const MemoryCurve needs = memory_curve(spec, first, compile_train(spec, first, 0), 0);
  EXPECT_GE(choice.memory.peak, needs.peak);
}

TEST(UnitsOfExperts, ABudgetIsKeptByTheExpertThatNeedsMore) {
  const ModelSpec spec = toy::dear_model();
  const Choice free = choose(spec, kTwo, two_experts({}), machine());
  const int64_t budget = free.memory.peak * 9 / 10;
  const Choice choice =
      choose(spec, kTwo, two_experts({"low_noise.blocks.* activations=recompute"}, budget), machine());
  ASSERT_TRUE(choice.fits) << choice.advice;
  for (const int expert : {0, 1}) {
    const Plan own = choice.plan.as_of(expert);
    EXPECT_LE(memory_curve(spec, own, compile_train(spec, own, 0), 0).peak, budget) << expert;
  }
  EXPECT_FALSE(choose(spec, kTwo, two_experts({"low_noise.blocks.* activations=keep"}, budget), machine()).fits)
      << "what the first expert saves does not help the second, which may not";
}

TEST(UnitsOfExperts, ThePlanFileHasThemAndGivesThemBack) {
  const ModelSpec spec = toy::dear_model();
  const std::vector<std::string> names = toy::names(spec);
  PlannerInput in = two_experts({"low_noise.blocks.1-2 strategy=shard_grad_op reduce=once", "blocks.2 reduce=once",
                                 "low_noise.blocks.2 reduce=each", "high_noise.head activations=recompute"});
  in.strategy = Strategy::full_shard;
  const Plan plan = choose(spec, kTwo, in, machine()).plan;
  ASSERT_EQ(plan.of_expert.size(), 1u);
  const std::string text = to_toml(plan, names);
  EXPECT_EQ(plan_of_toml(text, "plan.toml", names), plan) << text;
  const auto refused = [&](const std::string& toml) {
    return refusal([&] { plan_of_toml(toml, "plan.toml", names); });
  };
  expect_words(refused("experts = 2\n[[units]]\nname = \"*\"\nexpert = 2\n"),
               {"units[0].expert: found 2, the plan has experts = 2"});
  expect_words(refused("experts = 2\n[[units]]\nname = \"*\"\nexpert = 1\nstates = \"host\"\n"),
               {"stem: expert 1", "all experts use the same buffers"});
  expect_words(
      refused("experts = 2\nupdate = \"in_backward\"\n[[units]]\nname = \"head\"\nexpert = 1\nreduce = \"once\"\n"),
      {"head: with updates in the backward", "experts 1 and 0 reduce differently"});
}

TEST(UnitsOfExperts, AStepRunsTheScheduleOfItsExpert) {
  const ModelSpec spec = toy::model(3);
  Plan plan = toy::plan(spec, "dp_shard=2", 2, 1, 1);
  plan.experts = 2, plan.update = Update::just_in_time;
  plan.of_expert[1] = plan.units;
  for (UnitPlan& unit : plan.of_expert[1]) unit.strategy = Strategy::shard_grad_op;
  const RunSchedules all = compile_all(spec, plan, 0, 1);
  const auto gathers = [](const Schedule& schedule) {
    return std::ranges::count_if(schedule.list, [](const Instruction& in) { return in.op == Op::gather; });
  };
  std::map<int64_t, int64_t> by_step;
  const RunShape run{.steps = 4, .expert_of = [](int64_t step) { return static_cast<int>(step % 2); }};
  each_schedule(run, all, [&](int64_t step, const Schedule& schedule) { by_step[step] += gathers(schedule); });
  EXPECT_EQ(by_step[1], static_cast<int64_t>(spec.units.size())) << "gathered once where it stays gathered";
  EXPECT_GT(by_step[2], by_step[1]);
  EXPECT_EQ(by_step[3], by_step[1]);
  EXPECT_EQ(by_step[4], by_step[2]);
  const Schedule own = compile_train(spec, plan.as_of(1), 0);
  EXPECT_EQ(schedule_hash(all.step(true, 1)), schedule_hash(own));
  EXPECT_NE(schedule_hash(all.step(true, 0)), schedule_hash(own));
  EXPECT_EQ(all.arena(false), std::max({all.train.arena, all.first.arena, all.updates.arena, own.arena,
                                        all.step(false, 1).arena, all.updates_of(1).arena}));
}

}  // namespace
}  // namespace tessera::plan
