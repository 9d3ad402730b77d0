// Pipelines compiled: every schedule keeps the rules on every rank, gives back what it takes, and takes the time of the
// formulas.
#include <gtest/gtest.h>

#include <set>

#include "plan/edit.h"
#include "plan/toy.h"
#include "tessera/base/check.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/compile/rules.h"
#include "tessera/plan/plan_file.h"
#include "tessera/plan/simulate/predict.h"

namespace tessera::plan {
namespace {

using toy::conditioned;
using toy::draw;
using toy::Edit;
using toy::Random;
using toy::random_pipeline;

TEST(Stages, ThreeHundredRandomPipelinesKeepTheRules) {
  Random random(5);
  for (int n = 0; n < 300; ++n) {
    const ModelSpec spec = conditioned(toy::random_model(random));
    const Plan plan = random_pipeline(random, spec);
    const auto violations = check(toy::run(spec, plan, draw(random, 1, 2), draw(random, 0, 2)));
    ASSERT_TRUE(violations.empty()) << to_toml(plan, toy::names(spec)) << toy::text(violations);
  }
}

TEST(Stages, WhatARankTakesInAStepItGivesBack) {
  Random random(6);
  for (int n = 0; n < 200; ++n) {
    const ModelSpec spec = conditioned(toy::random_model(random));
    const Plan plan = random_pipeline(random, spec);
    for (int rank = 0; rank < plan.mesh.world(); ++rank) {
      const Schedule train = compile_train(spec, plan, rank), sample = compile_forward(spec, plan, rank, "sample", 2);
      for (const Schedule* schedule : {&train, &sample}) {
        ActivationWalk walk(spec, plan, rank, schedule == &train);
        for (const Instruction& in : schedule->list) walk.run(in);
        ASSERT_EQ(walk.live(), 0) << schedule->phase << " on rank " << rank << "\n" << to_toml(plan, toy::names(spec));
      }
    }
  }
}

/// Units before the first that is trained run forward alone: in full training of a part, and of adapters on later blocks.
TEST(Stages, NothingBeforeTheFirstTrainedUnitHasABackward) {
  Random random(7);
  int stopped = 0;
  for (int n = 0; n < 200; ++n) {
    ModelSpec spec = conditioned(toy::random_model(random));
    const int units = static_cast<int>(spec.units.size()), first = draw(random, 1, units - 1);
    for (int u = 0; u <= first; ++u) {
      spec.units[u].cost.grad_in = 0;  // as it is measured
      for (ParamSpec& param : spec.units[u].params) param.trainable = u == first;
    }
    Plan plan = draw(random, 0, 1) ? random_pipeline(random, spec) : toy::random_plan(random, spec, 2);
    const bool all = plan.pipeline.chunks > 1;
    stopped += !all;
    const auto lines = toy::run(spec, plan, draw(random, 1, 2), draw(random, 0, 2));
    const auto violations = check(lines);
    ASSERT_TRUE(violations.empty()) << to_toml(plan, toy::names(spec)) << toy::text(violations);
    for (int rank = 0; rank < plan.mesh.world(); ++rank) {
      ActivationWalk walk(spec, plan, rank, true);
      std::set<int> backward, forward;
      for (const Instruction& in : compile_train(spec, plan, rank).list) {
        walk.run(in);
        const bool back = in.op == Op::backward || in.op == Op::recompute || in.op == Op::idle ||
                          (in.op == Op::stash && in.part == Part::activations);
        if (back) backward.insert(in.unit);
        if (in.op == Op::forward) forward.insert(in.unit);
      }
      ASSERT_EQ(walk.live(), 0) << "rank " << rank << "\n" << to_toml(plan, toy::names(spec));
      for (const int u : backward) ASSERT_TRUE(all || u >= first) << u;
      for (const int u : forward) ASSERT_TRUE(u < first || backward.contains(u)) << u;
    }
  }
  EXPECT_GT(stopped, 100);
}

TEST(Stages, AHeadAloneSendsZerosForWhatItDoesNotUseWhileItsMicroBatchIsThere) {
  const ModelSpec spec = conditioned(toy::model(1));
  Plan plan = toy::plan(spec, "pp=2", 1, 1, 1);
  plan.pipeline.first = {0, 2};
  ActivationWalk walk(spec, plan, 1, true);
  int sends = 0;
  for (const Instruction& in : compile_train(spec, plan, 1).list) {
    const int64_t before = walk.live(), highest = walk.run(in);
    if (in.op != Op::send) continue;
    ++sends;  // it has a gradient of the first conditioning tensor; the boundary's is as large as the boundary
    EXPECT_EQ(highest, before + 640 + 64 + spec.units[1].cost.out - spec.units[2].cost.grad_in);
    EXPECT_EQ(walk.live(), highest - spec.tables - 896) << "then the micro-batch is over";
  }
  EXPECT_EQ(sends, 1);
}

TEST(Stages, AGradientThatComesAheadOfAnotherStagesBackwardIsAddedByTheStageItIsFor) {
  const ModelSpec spec = conditioned(toy::model(6));
  const auto after_second_stage = [&](int prefetch) {
    Plan plan = toy::plan(spec, "pp=2", 1, 1, prefetch);
    plan.pipeline = {PipelineSchedule::interleaved, 2, {0, 2, 4, 6}};
    ActivationWalk walk(spec, plan, 0, true);
    int64_t found = -1;
    for (const Instruction& in : compile_train(spec, plan, 0).list) {
      walk.run(in);
      if (in.op == Op::backward && in.unit == 4) found = walk.live();
    }
    return found;
  };
  const int64_t message = spec.units[1].cost.out + 192 + 640 + 64;
  EXPECT_EQ(after_second_stage(1), after_second_stage(0) + message) << "come early, it lies beside what blocks made";
}

TEST(Stages, ARankHoldsItsOwnUnitsOnly) {
  const ModelSpec spec = conditioned(toy::model(6));
  Plan plan = toy::plan(spec, "pp=2", 4, 1, 1);
  plan.pipeline.first = {0, 3};
  const int64_t whole = memory_curve(spec, toy::plan(spec, "dp_shard=1", 4, 1, 1),
                                     compile_train(spec, toy::plan(spec, "dp_shard=1", 4, 1, 1), 0), 0)
                            .persistent;
  int64_t sum = 0;
  for (int rank : {0, 1}) sum += memory_curve(spec, plan, compile_train(spec, plan, rank), rank).persistent;
  EXPECT_EQ(sum, whole);
  EXPECT_EQ(plan.stage_of(2), 0);
  EXPECT_EQ(plan.stage_of(3), 1);
  for (const Instruction& in : compile_train(spec, plan, 1).list)
    if (in.op == Op::forward || in.op == Op::update) EXPECT_GE(in.unit, 3);
}

TEST(Stages, MessagesHaveTheBytesOfTheirBoundaryAndConditioningTravelsOnce) {
  const ModelSpec spec = conditioned(toy::model(6));
  Plan plan = toy::plan(spec, "pp=2", 2, 1, 1);
  plan.pipeline = {PipelineSchedule::interleaved, 2, {0, 2, 4, 6}};
  const int64_t conditioning = 192 + 640 + 64;
  std::map<std::string, int64_t> sent;
  for (const Instruction& in : compile_train(spec, plan, 0).list)
    if (in.op == Op::send && in.micro == 0) sent[std::string(name(in.lane)) + " " + in.name] = in.comm.at(0).bytes;
  EXPECT_EQ(sent, (std::map<std::string, int64_t>{
                      {"send_next blocks.1", spec.units[1].cost.out + conditioning},
                      {"send_next blocks.5", spec.units[5].cost.out},
                      {"send_prev blocks.2", spec.units[3].cost.out},
                  }))
      << "chunk 0 carries conditioning, chunk 1 does not; its gradient comes back over the wrap without it";
}

/// One FLOP a second and links of no time: the clock of the formulas.
Machine ideal() {
  Machine machine;
  machine.profile = {};
  machine.profile.name = "by hand";
  machine.profile.device.gemm = {{"fp32", {1, 0}}};
  machine.profile.device.bandwidth = machine.profile.device.stream = {1e18, 0};
  machine.profile.link = {1e18, 1e18, 0};
  return machine;
}

Prediction on_stages(int stages, int micros, PipelineSchedule schedule, int chunks = 1) {
  ModelSpec spec = toy::model(8 * stages - 2);
  for (auto& unit : spec.units) unit.cost.forward_flops = 100, unit.cost.backward_flops = 200;
  Plan plan = toy::plan(spec, "pp=" + std::to_string(stages), micros, 1, 1);
  plan.pipeline = {schedule, chunks, {}};
  return predict(spec, plan, ideal());
}

TEST(Stages, TheSimulatedBubbleIsThatOfTheFormula) {
  const int p = 4, m = 8;
  const double work = 8 * 300.0;  // of a rank, for one micro-batch
  for (auto schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b}) {
    const Prediction prediction = on_stages(p, m, schedule);
    EXPECT_NEAR(prediction.step.total, (m + p - 1) * work, 1) << name(schedule);
    EXPECT_NEAR(prediction.step.compute, m * work, 1);
    EXPECT_NEAR(prediction.step.bubble, (p - 1) * work, 1) << "all that is not compute is waiting for stages";
  }
  EXPECT_NEAR(on_stages(p, m, PipelineSchedule::interleaved, 2).step.total, m * work + (p - 1) * work / 2, 1);
  EXPECT_NEAR(on_stages(p, m, PipelineSchedule::zero_bubble).step.total, m * work + (p - 1) * work / 3, 1)
      << "F = B - W = W";
}

TEST(Stages, RanksOfAStageAreSimulatedOnceAndStagesWaitForTheirNeighbours) {
  ModelSpec spec = toy::model(6);
  for (auto& unit : spec.units) unit.cost.forward_flops = 100, unit.cost.backward_flops = 200;
  const Plan plan = toy::plan(spec, "pp=2,dp_replicate=4,dp_shard=2", 3 * 8 - 2, 1, 1);
  const Prediction prediction = predict(spec, plan, ideal());
  int ranks = 0;
  for (const RankGroup& group : prediction.groups) ranks += group.ranks;
  EXPECT_EQ(ranks, 16);
  EXPECT_EQ(prediction.groups.size(), 4u) << "two stages; ranks with three samples and with two";
  EXPECT_NEAR(prediction.step.total, (3 + 1) * 4 * 300.0, 1);
}

struct Mutation {
  const char* name;
  bool (*wanted)(const Line&);
};
constexpr Mutation kDeletions[] = {
    {"delete a send", [](const Line& l) { return l.in.op == Op::send; }},
    {"delete a recv", [](const Line& l) { return l.in.op == Op::recv; }},
    {"never free what was sent", [](const Line& l) { return l.in.op == Op::drop && l.in.part == Part::message; }},
};

TEST(Stages, AMessageThatIsMissingIsNamed) {
  Random random(9);
  for (const Mutation& mutation : kDeletions)
    for (int n = 0; n < 25; ++n) {
      const ModelSpec spec = conditioned(toy::random_model(random));
      Edit edit(toy::run(spec, random_pipeline(random, spec), 1));
      const std::vector<int> found = edit.all(mutation.wanted);
      ASSERT_FALSE(found.empty());
      edit.remove(found[random() % found.size()]);
      ASSERT_FALSE(check(edit.done()).empty()) << mutation.name << "\n" << toy::text(edit.done());
    }
}

TEST(Stages, AUseThatDoesNotWaitForItsMessageIsRefused) {
  const ModelSpec spec = conditioned(toy::model(4));
  Edit edit(toy::run(spec, toy::plan(spec, "pp=2", 2, 1, 1), 1));
  const int use = edit.find([](const Line& l) { return l.rank == 1 && l.in.op == Op::forward; }, 0);
  edit.waits(use).clear();
  bool named = false;
  for (const Violation& violation : check(edit.done()))
    named = named || violation.text.find("what it was sent may not be there") != std::string::npos;
  EXPECT_TRUE(named);
}

TEST(Stages, MessagesInAnotherOrderThanTheirReceiverTakesThemAreRefused) {
  const ModelSpec spec = conditioned(toy::model(4));
  Edit edit(toy::run(spec, toy::plan(spec, "pp=2", 2, 1, 1), 1));
  const auto sends = edit.all([](const Line& l) { return l.rank == 0 && l.in.lane == Lane::send_next; });
  ASSERT_EQ(sends.size(), 2u);
  std::swap(edit[sends[0]].in.micro, edit[sends[1]].in.micro);
  EXPECT_FALSE(check(edit.done()).empty());
}

TEST(Stages, APlanFileSaysWhereStagesBegin) {
  const ModelSpec spec = toy::model(6);
  Plan plan = toy::plan(spec, "pp=2,dp_shard=2", 8, 1, 1);
  plan.pipeline = {PipelineSchedule::interleaved, 2, {0, 2, 4, 7}};
  const std::string text = to_toml(plan, toy::names(spec));
  EXPECT_NE(text.find("first = [\"stem\", \"blocks.1\", \"blocks.3\", \"head\"]"), std::string::npos) << text;
  EXPECT_EQ(plan_of_toml(text, "plan.toml", toy::names(spec)), plan);
  const auto refused = [&](const std::string& pipeline, const std::string& because) {
    try {
      plan_of_toml("[mesh]\npp = 2\n[pipeline]\n" + pipeline, "plan.toml", toy::names(spec));
      ADD_FAILURE() << pipeline;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(because), std::string::npos) << error.what();
    }
  };
  refused("schedule = \"1f2b\"\n", "1f1b");
  refused("chunks = 2\n", "interleaved");
  refused("first = [\"stem\", \"blocks.99\"]\n", "blocks.");
  refused("first = [\"blocks.0\", \"blocks.1\"]\n", "begin with 'stem'");
}

}  // namespace
}  // namespace tessera::plan
