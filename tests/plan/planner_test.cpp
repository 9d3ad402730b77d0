#include "tessera/plan/search/planner.h"
#include "tessera/plan/plan_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "matrix.h"
#include "plan/planner_toy.h"
#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/search/search_space.h"
#include "tessera/plan/simulate/cost.h"

namespace tessera::plan {
namespace {

using toy::input, toy::kTwo, toy::machine;

ModelSpec model() { return toy::dear_model(); }

int recomputed(const Plan& plan) {
  int n = 0;
  for (const auto& unit : plan.units) n += unit.activations == Policy::recompute;
  return n;
}

TEST(Planner, WithoutALimitNothingIsComputedAgainAndNothingLeavesTheDevice) {
  const Choice choice = choose(model(), kTwo, input(0, 1 << 30), machine());
  ASSERT_TRUE(choice.fits);
  for (const UnitPlan& unit : choice.plan.units) {
    EXPECT_EQ(unit.activations, Policy::keep);
    EXPECT_EQ(unit.states, Tier::device);
    EXPECT_EQ(unit.parameters, Tier::device);
  }
}

TEST(Planner, EveryBudgetDownToTheSmallestIsKept) {
  const ModelSpec spec = model();
  const Choice free = choose(spec, kTwo, input(0), machine());
  double before = free.seconds;
  for (int64_t budget = free.memory.peak; budget > free.memory.peak / 2; budget -= free.memory.peak / 40) {
    const Choice choice = choose(spec, kTwo, input(budget), machine());
    if (!choice.fits) {
      EXPECT_NE(choice.advice, "");
      continue;
    }
    EXPECT_LE(choice.memory.peak, budget);
    EXPECT_GE(choice.seconds, before * (1 - 1e-9)) << "less memory cannot be faster";
    before = choice.seconds;
  }
}

TEST(Planner, StatesLeaveTheDeviceWhenThereIsAHostAndNotOtherwise) {
  const ModelSpec spec = model();
  const Choice smallest = choose(spec, kTwo, input(1), machine());  // nothing fits: this is the smallest there is
  const int64_t budget = smallest.memory.peak - smallest.memory.persistent / 4;
  EXPECT_FALSE(choose(spec, kTwo, input(budget), machine()).fits);
  PlannerInput at_end = input(budget, 1 << 30);
  at_end.update = Update::end;  // updates just in time do not wait for what streams: more may leave than must
  const Choice choice = choose(spec, kTwo, at_end, machine());
  ASSERT_TRUE(choice.fits) << choice.advice;
  EXPECT_GT(choice.memory.host.states, 0);
  EXPECT_LT(choice.memory.host.states, smallest.memory.persistent / 2) << "and no more of them than must";
  EXPECT_FALSE(choose(spec, kTwo, input(budget, choice.memory.host.states / 4), machine()).fits)
      << "the host has a budget too";
}

TEST(Planner, UpdatesJustInTimeAreSearchedFromTheStartAndNotOnlyGivenToTheBestThatWaits) {
  const ModelSpec spec = model();
  const Choice smallest = choose(spec, kTwo, input(1), machine());
  const int64_t budget = smallest.memory.peak - smallest.memory.persistent / 4;
  PlannerInput at_end = input(budget, 1 << 30);
  const Choice free = choose(spec, kTwo, at_end, machine());
  at_end.update = Update::end;
  const Choice waiting = choose(spec, kTwo, at_end, machine());
  ASSERT_TRUE(free.fits && waiting.fits);
  EXPECT_EQ(free.plan.update, Update::just_in_time);
  Plan moved = waiting.plan;
  moved.update = Update::just_in_time;
  EXPECT_LT(free.seconds, predict(spec, moved, machine()).step.total) << free.plan.summary();
}

TEST(Planner, LeftOverMemoryKeepsAttentionFromRunningAgain) {
  const ModelSpec spec = model();
  const Choice free = choose(spec, kTwo, input(0), machine());
  PlannerInput all = input(0);
  all.recompute_units = 6;
  const Choice smallest = choose(spec, kTwo, all, machine());
  const Choice choice = choose(spec, kTwo, input((free.memory.peak + smallest.memory.peak) / 2), machine());
  ASSERT_TRUE(choice.fits);
  ASSERT_GT(recomputed(choice.plan), 0);
  int again = 0;
  for (const auto& unit : choice.plan.units) again += unit.activations == Policy::recompute && !unit.replays();
  EXPECT_LT(again, recomputed(choice.plan));
}

/// The same model, whose blocks need not hold two fifths of what their graphs save.
ModelSpec lean_model() {
  ModelSpec spec = model();
  for (auto& unit : spec.units) {
    Footprint& f = unit.cost;
    f.selective = f;
    f.selective->saved = f.saved * 3 / 5, f.selective->keep_peak -= f.saved - f.selective->saved;
    f.selective->rebuilt = f.saved, f.selective->rebuilds = 5;
  }
  return spec;
}

int with_policy(const Plan& plan, Policy policy) {
  return static_cast<int>(std::ranges::count(plan.units, policy, &UnitPlan::activations));
}

TEST(Planner, NormsAreMadeAgainBeforeAnythingIsComputedAgain) {
  const ModelSpec spec = lean_model();
  const Choice free = choose(spec, kTwo, input(0), machine());
  EXPECT_EQ(with_policy(free.plan, Policy::keep), static_cast<int>(spec.units.size()));
  PlannerInput all = input(0);
  all.activations = Policy::rebuild;
  const Choice selective = choose(spec, kTwo, all, machine());
  EXPECT_EQ(with_policy(selective.plan, Policy::rebuild), 6);
  EXPECT_LT(selective.memory.peak, free.memory.peak);
  EXPECT_GT(selective.seconds, free.seconds) << "it is not free";
  const Choice some = choose(spec, kTwo, input((free.memory.peak + selective.memory.peak) / 2), machine());
  ASSERT_TRUE(some.fits) << some.advice;
  EXPECT_GT(with_policy(some.plan, Policy::rebuild), 0);
  EXPECT_LT(with_policy(some.plan, Policy::rebuild), 6) << "no more blocks than must";
  EXPECT_EQ(recomputed(some.plan), 0);
  EXPECT_NE(some.plan.summary().find("rebuild "), std::string::npos) << some.plan.summary();
  const Choice less = choose(spec, kTwo, input(selective.memory.peak * 9 / 10), machine());
  ASSERT_TRUE(less.fits) << less.advice;
  EXPECT_GT(recomputed(less.plan), 0);
  EXPECT_GT(with_policy(less.plan, Policy::rebuild), 0) << "the others save less rather than run again";
  EXPECT_LT(less.seconds, choose(model(), kTwo, input(selective.memory.peak * 9 / 10), machine()).seconds);
}

TEST(Planner, NoneToRecomputeStillMayRebuild) {
  const ModelSpec spec = lean_model();
  PlannerInput all = input(0), none = all;
  all.activations = Policy::rebuild;
  none.budget = choose(spec, kTwo, all, machine()).memory.peak;
  none.recompute_units = 0;
  const Choice choice = choose(spec, kTwo, none, machine());
  ASSERT_TRUE(choice.fits) << choice.advice;
  EXPECT_EQ(recomputed(choice.plan), 0);
  EXPECT_GT(with_policy(choice.plan, Policy::rebuild), 0);
}

TEST(Planner, RecomputeThatContradictsActivationsIsRefusedWithTheNumberOfBlocks) {
  const auto refusal = [](int recompute_units) -> std::string {
    PlannerInput both = input(0);
    both.activations = Policy::keep;
    both.recompute_units = recompute_units;
    try {
      choose(model(), kTwo, both, machine());
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::usage);
      return error.what();
    }
    return "not refused";
  };
  EXPECT_NE(refusal(1 << 20).find("all blocks with plan.activations = \"keep\""), std::string::npos);
  EXPECT_NE(refusal(2).find("2 blocks with plan.activations = \"keep\""), std::string::npos);
}

TEST(Planner, AttentionThatIsSoonComputedAgainNeedNotBeKept) {
  Machine m = machine();
  m.work["block"].attention["cross"] = 1e9;  // few keys: bytes like the other's, and hardly any time
  m.work["block"].attention["attn"] = 5e11;
  ModelSpec spec = model();
  for (auto& unit : spec.units)
    if (unit.kind == "block") unit.cost.results["cross"] = unit.cost.results["attn"];
  PlannerInput all = input(0);
  all.recompute_units = 6;
  const int64_t smallest = choose(spec, kTwo, all, m).memory.peak;
  const auto sites_kept = [&](int64_t budget) {
    const Choice choice = choose(spec, kTwo, input(budget), m);
    std::set<std::string> kept;
    for (const UnitPlan& unit : choice.plan.units)
      for (const auto& [site, policy] : unit.sites)
        if (policy == Policy::keep) kept.insert(site);
    return kept;
  };
  EXPECT_EQ(sites_kept(smallest * 5 / 4), std::set<std::string>{"attn"});
}

TEST(Planner, ResultsAreKeptByTheTimeThatTheirBytesSaveAndThatTimeIsPredicted) {
  Machine m = machine();
  ModelSpec spec = model();
  UnitSpec& block = spec.units[1];
  block.cost.results["ffn"] = block.cost.results["attn"];
  m.work["block"].attention = {{"attn", 4e11}, {"cross", 1e9}};
  m.work["block"].results = {{"ffn", 2e11}};  // of a product's 5e11
  using Names = std::vector<std::string>;
  EXPECT_EQ(kept_sites(block, m, Sites::long_attention), Names{"attn"});
  EXPECT_EQ(kept_sites(block, m, Sites::long_attention_and_ffn), (Names{"attn", "ffn"}));
  EXPECT_EQ(kept_sites(block, m, Sites::all), (Names{"attn", "cross", "ffn"}));
  Plan plan = toy::plan(spec, "dp_shard=2", 2, 1, 1);
  plan.units[1].activations = Policy::recompute;
  const auto again = [&] { return CostModel(spec, plan, m).forward_seconds(1, true); };
  const double all = again();
  plan.units[1].sites = {{"ffn", Policy::offload}};
  EXPECT_NEAR(all - again(), m.profile.device.gemm.at("fp32").seconds(2e11), 1e-9);
  EXPECT_NE(plan.summary().find("(ffn of 1 not recomputed)"), std::string::npos) << plan.summary();
}

TEST(Planner, WhatFitsOnTheHostDoesNotStayOnTheDisk) {
  const ModelSpec spec = model();
  const Choice smallest = choose(spec, kTwo, input(1), machine());
  PlannerInput in = input(smallest.memory.peak - smallest.memory.persistent / 2, smallest.memory.persistent / 4);
  EXPECT_FALSE(choose(spec, kTwo, in, machine()).fits);
  in.nvme = true;
  const Choice choice = choose(spec, kTwo, in, machine());
  ASSERT_TRUE(choice.fits) << choice.advice;
  const auto on_disk = std::count_if(choice.plan.units.begin(), choice.plan.units.end(),
                                     [](const UnitPlan& unit) { return unit.states == Tier::nvme; });
  ASSERT_GT(on_disk, 0);
  EXPECT_GT(choice.memory.host.total(), 0);
  EXPECT_LT(in.host_budget - choice.memory.host.total(), choice.memory.nvme.states / on_disk)
      << "another unit's states would have had room on the host";
}

TEST(Planner, StatesThatTheHostHasNoRoomForGoToTheDiskEvenly) {
  const ModelSpec spec = toy::dear_model(12);
  PlannerInput in = input(0, int64_t{1} << 40);
  in.recompute_units = 12, in.prefetch = 1, in.update = Update::end, in.strategy = Strategy::full_shard;
  in.parameters = in.gradients = Tier::device;
  PlannerInput away = in;
  away.states_tier = Tier::host;
  const MemoryCurve memory = choose(spec, kTwo, away, machine()).memory;
  in.budget = memory.peak, in.host_budget = memory.host.total() * 3 / 4;
  EXPECT_FALSE(choose(spec, kTwo, in, machine()).fits);
  in.nvme = true;
  const Choice choice = choose(spec, kTwo, in, machine());
  ASSERT_TRUE(choice.fits) << choice.advice;
  std::vector<int> on_disk;
  for (int u = 0; u < static_cast<int>(spec.units.size()); ++u)
    if (choice.plan.units[static_cast<size_t>(u)].states == Tier::nvme) on_disk.push_back(u);
  ASSERT_GT(on_disk.size(), 1u) << choice.plan.summary();
  ASSERT_LE(on_disk.size(), spec.units.size() / 2) << choice.plan.summary();
  for (size_t i = 1; i < on_disk.size(); ++i) EXPECT_GT(on_disk[i] - on_disk[i - 1], 1) << choice.plan.summary();
}

TEST(Planner, AnEarlyRefusalLeavesRoomThatIsChosenByHand) {
  const ModelSpec spec = toy::dear_model(12, 12);
  PlannerInput in = input(0);  // a host without a budget of its own
  in.recompute_units = 12, in.prefetch = 1, in.update = Update::end, in.strategy = Strategy::full_shard;
  in.parameters = in.gradients = in.states_tier = Tier::host;
  const MemoryCurve memory = choose(spec, kTwo, in, machine()).memory;
  ASSERT_LT(memory.peak, memory.host.total()) << "what lasts is more than the device has";
  in.budget = memory.peak, in.first_that_fits = true, in.recompute_units.reset();
  const Choice choice = choose(spec, kTwo, in, machine());
  EXPECT_TRUE(choice.fits) << choice.advice;
}

TEST(Planner, ActivationsGoOnToTheDiskWhereTheHostHasNoRoomAndNoMoreOfThem) {
  const ModelSpec spec = model();
  PlannerInput in = input(0, 1 << 30);
  in.activations = Policy::offload;
  in.parameters = in.gradients = in.states_tier = Tier::device;
  const Choice roomy = choose(spec, kTwo, in, machine());
  const auto on_disk = [](const Choice& choice) {
    return std::count_if(choice.plan.units.begin(), choice.plan.units.end(),
                         [](const UnitPlan& unit) { return unit.offload_to == Tier::nvme; });
  };
  EXPECT_EQ(on_disk(roomy), 0);
  in.host_budget = roomy.memory.host.total() * 3 / 4;
  EXPECT_FALSE(choose(spec, kTwo, in, machine()).fits);
  in.nvme = true;
  const Choice choice = choose(spec, kTwo, in, machine());
  ASSERT_TRUE(choice.fits) << choice.advice;
  EXPECT_GT(on_disk(choice), 0);
  EXPECT_LT(on_disk(choice), static_cast<int>(spec.units.size()) - 2) << "the host holds what it has room for";
  EXPECT_LE(choice.memory.host.total(), in.host_budget);
  in.offload_to = Tier::host;  // by hand it is kept
  EXPECT_FALSE(choose(spec, kTwo, in, machine()).fits);
}

TEST(Planner, WhateverItTriesIsAPlanThatMayBeWrittenByHand) {
  const ModelSpec spec = model();
  const Choice smallest = choose(spec, kTwo, input(1), machine());
  constexpr int kTenths = 12, kUpdates = 3;
  tessera::testing::MatrixPart part("searches whose candidates may be written by hand", kTenths * kUpdates);
  for (const int i : part) {
    PlannerInput in = input(smallest.memory.peak - smallest.memory.persistent / 2,
                            smallest.memory.persistent * (1 + i / kUpdates) / 10);
    in.update = static_cast<Update>(i % kUpdates);
    for (const Candidate& candidate : choose(spec, kTwo, in, machine()).candidates)
      EXPECT_NO_THROW(candidate.plan.check_updates("")) << candidate.plan.summary();
  }
}

TEST(Planner, WhatIsSetByHandIsKept) {
  PlannerInput in = input(0, 1 << 30);
  in.activations = Policy::offload;
  in.gradients = Tier::host;
  in.strategy = Strategy::shard_states;
  in.prefetch = 3;
  const Choice choice = choose(model(), kTwo, in, machine());
  ASSERT_TRUE(choice.fits);
  EXPECT_EQ(choice.plan.prefetch, 3);
  for (size_t u = 1; u + 1 < choice.plan.units.size(); ++u) {
    EXPECT_EQ(choice.plan.units[u].activations, Policy::offload);
    EXPECT_EQ(choice.plan.units[u].gradients, Tier::host);
    EXPECT_EQ(choice.plan.units[u].strategy, Strategy::shard_states);
  }
}

TEST(Planner, GradientsAreReducedOnceAStepWhereThatIsAskedFor) {
  PlannerInput in = input(0);
  in.global_batch = 8;  // four micro-batches a rank
  const Choice each = choose(model(), kTwo, in, machine());
  in.reduce_once = true;
  EXPECT_TRUE(set_by_hand(in));
  const Choice once = choose(model(), kTwo, in, machine());
  const auto reductions = [](const Choice& choice) {
    const Schedule schedule = compile_train(model(), choice.plan, 0);
    return std::ranges::count(schedule.list, Op::reduce, &Instruction::op);
  };
  EXPECT_EQ(reductions(each), 4 * reductions(once));
  EXPECT_NE(to_toml(once.plan, std::vector<std::string>(once.plan.units.size(), "unit")).find("reduce = \"once\""),
            std::string::npos);
}

TEST(Planner, CopiesOfTheModelMayShareItsStates) {
  const Mesh copies = Mesh::parse("dp_replicate=2,dp_shard=2");
  PlannerInput in = input(0);
  std::map<Strategy, MemoryParts> parts;
  for (const Strategy strategy : {Strategy::full_shard, Strategy::two_level}) {
    in.strategy = strategy;
    const Choice choice = choose(model(), copies, in, machine());
    ASSERT_TRUE(choice.fits);
    parts[strategy] = choice.memory.by_part;
  }
  const MemoryParts &two = parts[Strategy::two_level], &one = parts[Strategy::full_shard];
  EXPECT_NEAR(static_cast<double>(two.parameters) / static_cast<double>(one.parameters), 1, 0.05) << "but for padding";
  EXPECT_NEAR(static_cast<double>(two.states) / static_cast<double>(one.states), 0.5, 0.05);
  in.strategy.reset();
  const auto tried = [&](const Mesh& mesh) {
    const auto candidates = choose(model(), mesh, in, machine()).candidates;
    return std::any_of(candidates.begin(), candidates.end(),
                       [](const Candidate& c) { return c.plan.units[1].strategy == Strategy::two_level; });
  };
  EXPECT_TRUE(tried(copies));
  EXPECT_FALSE(tried(kTwo)) << "one copy has nobody to share with";
}

TEST(Planner, FewerBitsAreForBlocksAndOnlyWhereAskedForByName) {
  for (const Policy policy : {policy_of("int8", ""), policy_of("offload_bf16", "")}) {
    PlannerInput in = input(0);
    in.activations = policy;
    const Choice choice = choose(model(), kTwo, in, machine());
    ASSERT_TRUE(choice.fits) << choice.advice;
    for (size_t u = 0; u < choice.plan.units.size(); ++u)
      EXPECT_EQ(choice.plan.units[u].activations, u == 0 || u + 1 == choice.plan.units.size() ? Policy::keep : policy);
  }
  for (const int64_t budget : {int64_t{0}, choose(model(), kTwo, input(0), machine()).memory.peak / 2}) {
    const Choice free = choose(model(), kTwo, input(budget, 1 << 30), machine());
    for (const Candidate& candidate : free.candidates)
      for (const UnitPlan& unit : candidate.plan.units) EXPECT_FALSE(unit.compresses()) << candidate.plan.summary();
  }
}

TEST(Planner, ANumberOfBlocksThatRecomputeContradictsAnotherPolicy) {
  for (const auto& [activations, blocks] :
       {std::pair(policy_of("int8", ""), 2), {Policy::keep, 1}, {Policy::recompute, 0}}) {
    PlannerInput in = input(0);
    in.activations = activations, in.recompute_units = blocks;
    EXPECT_THROW(choose(model(), kTwo, in, machine()), UserError) << name(activations);
  }
  PlannerInput none = input(0);
  none.activations = policy_of("fp8", ""), none.recompute_units = 0;
  EXPECT_TRUE(choose(model(), kTwo, none, machine()).fits);
}

TEST(Planner, InputsOfRecomputedBlocksWaitOnTheHostWhereThatIsAskedFor) {
  PlannerInput in = input(0);
  in.activations = kRecomputeOffload.policy;
  const Choice choice = choose(model(), kTwo, in, machine());
  ASSERT_TRUE(choice.fits) << choice.advice;
  int blocks = 0;
  for (const UnitPlan& unit : choice.plan.units) {
    if (unit.activations != Policy::recompute) continue;
    ++blocks;
    EXPECT_EQ(unit.policy(kBlockInput), Policy::offload);
  }
  EXPECT_EQ(blocks, 6);
}

TEST(Planner, ASiteThatAUnitLacksIsRefusedWithTheNearest) {
  const ModelSpec spec = model();
  Plan plan = toy::plan(spec, "dp_shard=2", 2, 1, 1);
  plan.units[2].activations = Policy::recompute;
  plan.units[2].sites["atn"] = Policy::keep;
  try {
    check_sites(spec, plan);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'attn'"), std::string::npos) << error.what();
  }
}

TEST(Planner, UpdatesMoveBesideOtherWorkWhereStatesRestElsewhereAndItSaysWhatThatGains) {
  PlannerInput in = input(0, 1 << 30);
  in.states_tier = Tier::host;
  in.update = Update::end, in.update_on = Tier::device;
  const Choice at_end = choose(model(), kTwo, in, machine());
  EXPECT_EQ(at_end.plan.update, Update::end) << "by hand";
  in.update.reset();
  const Choice in_time = choose(model(), kTwo, in, machine());
  EXPECT_EQ(in_time.plan.update, Update::just_in_time);
  EXPECT_LT(in_time.seconds, at_end.seconds);
  EXPECT_NE(in_time.why.find("updates just in time make a step"), std::string::npos) << in_time.why;
  in.update_on.reset(), in.update = Update::end;
  Machine slow = machine();
  slow.profile.host_link /= 100;  // states are slow to bring, and the host computes as fast as ever
  const Choice on_host = choose(model(), kTwo, in, slow);
  size_t updated_there = 0;
  for (const UnitPlan& unit : on_host.plan.units)
    if (unit.update_on == Tier::host) {
      ++updated_there;
      EXPECT_EQ(unit.parameters, Tier::host);
    }
  EXPECT_GT(updated_there, on_host.plan.units.size() / 2);
  in.update_on = Tier::host;
  EXPECT_LE(on_host.seconds, choose(model(), kTwo, in, slow).seconds)
      << "both at work are no slower than the host alone";
  in.update_on = Tier::device;
  EXPECT_LT(on_host.seconds, choose(model(), kTwo, in, slow).seconds);
  const Choice near = choose(model(), kTwo, input(0, 1 << 30), machine());
  EXPECT_EQ(near.plan.update, Update::end) << "there is nothing to hide";
}

TEST(Planner, TwoTimesOfOneSentenceAreToldApart) {
  using Pair = std::pair<std::string, std::string>;
  EXPECT_EQ(format_distinct_seconds(0.0031, 0.0034), Pair("3.1 ms", "3.4 ms"));
  EXPECT_EQ(format_distinct_seconds(0.0031, 0.0042), Pair("3 ms", "4 ms"));
  EXPECT_EQ(format_distinct_seconds(1.201, 1.204), Pair("1.201 s", "1.204 s"));
  EXPECT_EQ(format_distinct_seconds(125.1, 125.4), Pair("125.1 s", "125.4 s"));
  EXPECT_EQ(format_distinct_seconds(2, 2), Pair("2.0 s", "2.0 s"));
}

TEST(Planner, UpdatesInBackwardMakeRoomWhereNothingClips) {
  PlannerInput in = input(0);
  in.strategy = Strategy::full_shard, in.prefetch = 1;
  in.update = Update::end;
  const Choice at_end = choose(model(), kTwo, in, machine());
  in.update = Update::in_backward;
  const Choice in_backward = choose(model(), kTwo, in, machine());
  int64_t shards = 0;
  for (size_t u = 0; u < at_end.plan.units.size(); ++u)
    shards += 4 * at_end.plan.layout(model().units[u], static_cast<int>(u)).grad_shard;
  EXPECT_EQ(at_end.memory.persistent - in_backward.memory.persistent, shards) << "no gradient rests anywhere";
  EXPECT_LT(in_backward.memory.peak, at_end.memory.peak);
  PlannerInput tight = input(in_backward.memory.peak);
  tight.strategy = in.strategy, tight.prefetch = in.prefetch, tight.activations = Policy::keep;
  EXPECT_FALSE(choose(model(), kTwo, tight, machine()).fits) << "something may clip";
  tight.may_update_in_backward = true;
  const Choice found = choose(model(), kTwo, tight, machine());
  ASSERT_TRUE(found.fits) << found.advice;
  EXPECT_EQ(found.plan.update, Update::in_backward);
}

TEST(Planner, EveryFourthBlockOfTheModelRecomputesOnAnyStageAndOfEachExpert) {
  const ModelSpec spec = toy::dear_model(11);
  const std::vector<std::string> names = toy::names(spec);
  const std::set<std::string> wanted = {"blocks.0", "blocks.4", "blocks.8"};
  for (const char* mesh : {"dp_shard=2", "pp=2", "pp=3"})
    for (const int experts : {1, 2})
      for (const std::optional<Policy> activations : {std::optional<Policy>(), {Policy::recompute}}) {
        PlannerInput in = input(0);
        in.global_batch = 6, in.experts = experts, in.activations = activations;
        in.recompute_every = 4;
        const Choice choice = choose(spec, Mesh::parse(mesh), in, machine());
        ASSERT_TRUE(choice.fits) << choice.advice;
        const Plan plan = plan_of_toml(to_toml(choice.plan, names), "plan.toml", names);
        std::set<std::string> planned, run;
        for (size_t u = 0; u < plan.units.size(); ++u)
          if (plan.units[u].recomputes()) planned.insert(names[u]);
        EXPECT_EQ(planned, wanted) << mesh << ": " << plan.summary();
        for (int rank = 0; rank < plan.mesh.world(); ++rank)
          for (const Instruction& in : compile_train(spec, plan, rank).list)
            if (in.op == Op::recompute) run.insert(in.name);
        EXPECT_EQ(run, wanted) << mesh;
      }
}

TEST(Planner, AnUpdateOnTheHostByHandHasItsBuffersThere) {
  PlannerInput in = input(0, 1 << 30);
  in.update_on = Tier::host;
  const Choice choice = choose(model(), kTwo, in, machine());
  ASSERT_TRUE(choice.fits);
  for (const UnitPlan& unit : choice.plan.units)
    EXPECT_TRUE(unit.states == Tier::host && unit.gradients == Tier::host && unit.update_on == Tier::host);
  in.states_tier = Tier::nvme;
  EXPECT_THROW(choose(model(), kTwo, in, machine()), UserError);
}

/// Of units that were not measured. Buffers that are placed by hand, updates on the host too, may mean room that no budget names.
TEST(Planner, WhatARankKeepsBetweenStepsIsHeldAgainstMemoryUnlessItIsPlacedByHand) {
  ModelSpec unmeasured = model();
  for (UnitSpec& unit : unmeasured.units) unit.cost = {};
  const PlannerInput little = input(1024), much = input(int64_t{1} << 40);
  EXPECT_TRUE(lasting_bytes_exceed_memory(unmeasured, kTwo, little));
  EXPECT_FALSE(lasting_bytes_exceed_memory(unmeasured, kTwo, much));
  EXPECT_FALSE(lasting_bytes_exceed_memory(unmeasured, kTwo, input(1024, int64_t{1} << 40)));
  for (const auto by_hand : {&PlannerInput::states_tier, &PlannerInput::update_on}) {
    PlannerInput in = little;
    in.*by_hand = Tier::host;
    EXPECT_FALSE(lasting_bytes_exceed_memory(unmeasured, kTwo, in));
  }
}

}  // namespace
}  // namespace tessera::plan
