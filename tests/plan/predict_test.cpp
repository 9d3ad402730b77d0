#include "tessera/plan/simulate/predict.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <map>

#include "plan/toy.h"
#include "tessera/base/check.h"
#include "tessera/plan/search/planner.h"

namespace tessera::plan {
namespace {

/// One FLOP a second, one byte a second on the link, streaming for free: seconds can be counted by hand.
Machine slow_machine() {
  Machine machine;
  machine.profile = {};
  machine.profile.name = "by hand";
  machine.profile.device.gemm = {{"fp32", {1, 0}}};
  machine.profile.device.bandwidth = machine.profile.device.stream = {1e18, 0};
  machine.profile.link = {1, 1, 0};
  return machine;
}

/// `blocks` blocks of one parameter [256, 1] and 1000 FLOPs, a stem and a head of the same size.
ModelSpec even_model(int blocks) {
  ModelSpec spec;
  for (int u = 0; u < blocks + 2; ++u) {
    UnitSpec unit;
    unit.name = u == 0 ? "stem" : u > blocks ? "head" : "blocks." + std::to_string(u - 1);
    unit.kind = u == 0 ? "stem" : u > blocks ? "head" : "block";
    unit.params = {{unit.name + ".weight", {256, 2}}};
    unit.cost.forward_flops = 10000, unit.cost.backward_flops = 20000;
    unit.cost.saved = 1 << 20, unit.cost.out = 1 << 10;
    spec.units.push_back(unit);
  }
  return spec;
}

TEST(Predict, OneRankTakesTheTimeOfItsCompute) {
  const ModelSpec spec = even_model(2);
  const Prediction p = predict(spec, toy::plan(spec, "dp_shard=1", 1, 1, 1), slow_machine());
  EXPECT_NEAR(p.step.total, 4 * 30000, 1e-6);
  EXPECT_NEAR(p.step.compute, p.step.total, 1e-6);
  EXPECT_EQ(p.step.exposed_comm, 0);
  EXPECT_NEAR(p.flops_per_second, 1, 1e-9);
}

TEST(Predict, OnlyTheFirstGatherAndTheLastReductionAreExposedWhenComputeIsLonger) {
  const ModelSpec spec = even_model(2);
  // A gather or reduction of 512 elements over two ranks: 256 elements sent, 1024 bytes, 1024 seconds.
  const Prediction p = predict(spec, toy::plan(spec, "dp_shard=2", 2, 1, 1), slow_machine());
  const double norm = static_cast<double>(kControlBytes);
  EXPECT_NEAR(p.step.total, 4 * 30000 + 1024 + 1024 + norm, 1e-6);
  EXPECT_NEAR(p.step.exposed_comm, 1024 + 1024 + norm, 1e-6);
  EXPECT_GT(p.groups[0].busy_link, p.step.exposed_comm);
}

// Of encoders beside the step: on a GPU they fill what its compute leaves free, on its host the whole step.
TEST(Predict, EncodersTakeWhatTheStepDoesNotHide) {
  const ModelSpec spec = even_model(2);
  const Plan plan = toy::plan(spec, "dp_shard=2", 2, 1, 1);
  const Prediction alone = predict(spec, plan, slow_machine());
  const double total = alone.step.total, free = alone.step.exposed_comm;
  ASSERT_GT(free, 2000);
  int devices = 8;
  const auto with = [&](Beside beside) {
    Machine machine = slow_machine();
    machine.profile.devices = devices;
    machine.beside = beside;
    const StepSeconds step = predict(spec, plan, machine).step;
    EXPECT_NEAR(step.total, total + step.encoders, 1e-6);
    EXPECT_NEAR(step.compute, alone.step.compute, 1e-6);
    return step.encoders;
  };
  EXPECT_EQ(alone.step.encoders, 0);
  EXPECT_NEAR(with({.between = 10}), 10, 1e-6);
  EXPECT_NEAR(with({.device = free - 1}), 0, 1e-6);
  EXPECT_NEAR(with({.device = free + 5}), 5, 1e-6);
  EXPECT_NEAR(with({.host = total - 1}), 0, 1e-6);
  EXPECT_NEAR(with({.host = total + 7}), 7, 1e-6);
  EXPECT_NEAR(with({.between = 10, .device = free + 5}), 15, 1e-6);
  devices = 0;  // the cores of a CPU: nothing is beside compute
  EXPECT_NEAR(with({.between = 10, .device = 5}), 15, 1e-6);
  EXPECT_NEAR(with({.host = 7}), 7, 1e-6);
}

TEST(Predict, WithoutPrefetchEveryGatherIsExposed) {
  const ModelSpec spec = even_model(2);
  Plan with = toy::plan(spec, "dp_shard=2", 2, 1, 1), without = toy::plan(spec, "dp_shard=2", 2, 1, 0);
  EXPECT_GT(predict(spec, without, slow_machine()).step.exposed_comm,
            predict(spec, with, slow_machine()).step.exposed_comm + 3 * 1024);
}

TEST(Predict, RecomputeCostsOneMoreForward) {
  const ModelSpec spec = even_model(3);
  Plan plan = toy::plan(spec, "dp_shard=1", 1, 1, 1);
  const double keep = predict(spec, plan, slow_machine()).step.total;
  plan.units[1].activations = plan.units[2].activations = Policy::recompute;
  EXPECT_NEAR(predict(spec, plan, slow_machine()).step.total - keep, 2 * 10000, 1e-6);
}

TEST(Predict, AlikeRanksAreOneGroup) {
  const ModelSpec spec = even_model(1);
  const auto even = rank_groups(spec, toy::plan(spec, "dp_shard=4", 8, 2, 1));
  ASSERT_EQ(even.size(), 1u);
  EXPECT_EQ(even[0].ranks, 4);
  const auto uneven = rank_groups(spec, toy::plan(spec, "dp_shard=4", 5, 1, 1));
  ASSERT_EQ(uneven.size(), 2u);
  EXPECT_EQ(uneven[0].ranks + uneven[1].ranks, 4);
  EXPECT_EQ(std::max(uneven[0].ranks, uneven[1].ranks), 3);  // one rank has two samples
}

TEST(Predict, GroupsAreTheRanksOfAKind) {
  const ModelSpec spec = even_model(2);
  for (const char* mesh : {"dp_shard=5", "dp_replicate=2,dp_shard=4,sp=2", "pp=2,dp_shard=3", "dp_shard=8,tp=2"})
    for (int64_t batch = 1; batch <= 17; ++batch) {
      Plan plan = toy::plan(spec, mesh, batch, 2, 1);
      std::map<std::array<int64_t, 2>, int> counted;
      for (int rank = 0; rank < plan.mesh.world(); ++rank) ++counted[rank_kind(plan, rank)];
      const auto groups = rank_groups(spec, plan);
      ASSERT_EQ(groups.size(), counted.size()) << mesh << " " << batch;
      for (const RankGroup& group : groups) {
        EXPECT_EQ(group.ranks, counted.at(rank_kind(plan, group.rank))) << mesh << " " << batch;
        for (int rank = 0; rank < group.rank; ++rank) EXPECT_NE(rank_kind(plan, rank), rank_kind(plan, group.rank));
      }
    }
}

TEST(Predict, IdleRanksWaitForTheBusyOnes) {
  const ModelSpec spec = even_model(1);
  const Prediction p = predict(spec, toy::plan(spec, "dp_shard=2", 1, 1, 1), slow_machine());
  ASSERT_EQ(p.groups.size(), 2u);
  EXPECT_GE(p.step.total, 3 * 30000);
  EXPECT_NEAR(p.groups[0].spans.back().end, p.groups[1].spans.back().end, 1e-6);
  for (const int64_t samples : {1, 3, 5, 7}) {  // the parts of a step are those of a rank that has something to do
    const Prediction q = predict(spec, toy::plan(spec, "dp_shard=8", samples, 1, 1), slow_machine());
    EXPECT_NEAR(q.step.compute, 3 * 30000, 1) << samples;
  }
}

TEST(Predict, WorkByKindOfOperatorTakesThePlaceOfPlainFlops) {
  const ModelSpec spec = even_model(0);
  Machine machine = slow_machine();
  machine.profile.device.gemm = {{"fp32", {10, 5}}};
  machine.profile.device.attention = {{"fp32", {4, 0}}};
  machine.profile.device.attention_backward = {{"fp32", {5, 0}}};
  machine.profile.device.stream = {2, 0};
  machine.update_bytes = 0;
  UnitWork& work = machine.work["stem"];
  work = {.attention = {{"self_attn", 8}}, .streamed = 6, .operators = 1};
  work.add_product(5, true), work.add_product(15, false);
  const Plan plan = toy::plan(spec, "dp_shard=1", 1, 1, 1);
  const CostModel cost(spec, plan, machine);
  EXPECT_NEAR(cost.forward_seconds(0, false), 1 + 2 + 2 + 3, 1e-9);  // products, attention, stream
  EXPECT_NEAR(cost.backward_seconds(0), (1 + 2) + 1 + 4 + 6, 1e-9);  // one weight is trained; 2.5 * 8 / 5 of attention
  EXPECT_NEAR(cost.weight_grad_seconds(0), 1, 1e-9);
  machine.work["stem"].backward = false;
  EXPECT_EQ(CostModel(spec, plan, machine).backward_seconds(0), 0) << "nothing before it or in it is trained";
}

// The bytes that a rank holds say how much of its weights a cache keeps from step to step.
TEST(Predict, ProductsAreTimedBetweenCachedAndUncachedWeights) {
  const ModelSpec spec = even_model(0);  // two buffers of 512 elements: 16 KiB with gradients and moments
  Machine machine = slow_machine();
  machine.work["stem"].add_product(5, true);
  machine.sizes["stem"] = {.products = {{1, 1, 1}}, .weight_grads = {{1, 1, 1}}};
  const auto grid = [](double seconds) {
    return TimeGrid{{{1}, {1}, {1}},
                    {{"forward", {seconds}}, {"input_gradient", {seconds}}, {"weight_gradient", {seconds}}}};
  };
  DeviceProfile& device = machine.profile.device;
  device.products["fp32"] = grid(1);
  const Plan plan = toy::plan(spec, "dp_shard=1", 1, 1, 1), halves = toy::plan(spec, "dp_shard=2", 2, 1, 1);
  const auto seconds = [&](const Plan& of) { return CostModel(spec, of, machine).forward_seconds(0, false); };
  EXPECT_NEAR(seconds(plan), 1, 1e-9);
  device.uncached_products["fp32"] = grid(100);
  device.cached = 4096, device.uncached = 4 * 16384;
  EXPECT_NEAR(seconds(plan), 10, 1e-9) << "half of the way, as powers go";
  EXPECT_NEAR(seconds(halves), std::pow(100, 0.25), 1e-9) << "a rank holds half";
  device.cached = 16384;
  EXPECT_NEAR(seconds(plan), 1, 1e-9);
  device.cached = 1, device.uncached = 1024;
  EXPECT_NEAR(seconds(plan), 100, 1e-9) << "no cache holds anything";
}

TEST(Predict, WhatTheEngineAddsCountsForEveryInstructionOfTheComputeLane) {
  const ModelSpec spec = even_model(2);  // each graph keeps 1 MiB
  Plan plan = toy::plan(spec, "dp_shard=1", 1, 1, 1);
  plan.units[2].activations = Policy::recompute;
  Machine machine = slow_machine();
  const StepSeconds before = predict(spec, plan, machine).step;
  machine.profile.starts = {{"forward", 1}, {"recompute", 2}, {"backward", 4}, {"norm", 8}};
  machine.profile.device.kept_write = 1 << 19, machine.profile.device.kept_read = 1 << 18;
  const StepSeconds after = predict(spec, plan, machine).step;
  const double graphs = 3 * (2 + 4);  // written and read, of the three units that are not recomputed
  EXPECT_NEAR(after.total - before.total, 4 * 1 + 2 + 4 * 4 + 8 + graphs, 1e-6);
  EXPECT_NEAR(after.optimizer - before.optimizer, 8, 1e-6);
  EXPECT_NEAR(after.compute - before.compute, 4 * 1 + 2 + 4 * 4 + graphs, 1e-6);
}

// [Note: handed over in turn]: the gather of the third unit stands after the first forward in the list.
TEST(Predict, WhereTheEngineWasMeasuredNoLaneBeginsBeforeTheComputeBeforeItHasEnded) {
  const ModelSpec spec = even_model(2);
  Plan plan = toy::plan(spec, "dp_shard=2", 2, 1, 1);
  for (UnitPlan& unit : plan.units) unit.strategy = Strategy::shard_grad_op;  // no gather waits for a slot
  const auto begins_too_early = [&](const Machine& machine) {
    const RankGroup group = predict(spec, plan, machine).groups.at(0);
    double computed = 0;
    int early = 0;
    for (size_t i = 0; i < group.spans.size(); ++i)
      if (group.schedule.list[i].lane == Lane::compute)
        computed = group.spans[i].end;
      else
        early += group.spans[i].begin < computed - 1e-9;
    return early;
  };
  Machine machine = slow_machine();
  EXPECT_GT(begins_too_early(machine), 0);
  machine.profile.starts = {{"forward", 1}};
  EXPECT_EQ(begins_too_early(machine), 0);
  machine.profile.devices = 8;  // a host hands its devices all there is at once
  EXPECT_GT(begins_too_early(machine), 0);
}

/// Seconds on the link, or of waiting, of an instruction of unit 1 with these collectives over sp, 100 bytes each.
double seconds_on_link(const CostModel& cost, Op op, const std::vector<Traffic>& traffic,
                       Resource resource = Resource::link) {
  Instruction in{.op = op, .lane = Lane::compute, .unit = 1, .name = "blocks.0", .micro = 0};
  for (const Traffic& t : traffic) in.comm.push_back({"sp", t.kind, 100, t.purpose + ":sp[0,1]"});
  double seconds = 0;
  for (const Phase& phase : cost.phases(in, 0))
    if (phase.resource == resource) seconds += phase.seconds;
  return seconds;
}

/// A product of [8, 4] by [2, 4]: 128 FLOPs. In 8 bits twice as fast, and its operands are quantised.
TEST(CostModel, ProductsIn8BitsHaveTheirRateAndStreamTheirOperands) {
  ModelSpec model;
  model.units = {{.name = "block", .kind = "block", .params = {}, .cost = {}}};
  Plan plan;
  plan.units.resize(1);
  Machine machine;
  machine.dtype = "bf16";
  machine.profile.device.gemm = {{"bf16", {1, 0}}, {"fp8", {2, 0}}};
  machine.profile.device.stream = {10, 0};
  UnitWork& work = machine.work["block"];
  work = {.products = {128}, .input_grads = {128}, .weight_grads = {128}, .backward = true};
  const auto seconds = [&](bool fp8, bool streams) {
    plan.fp8 = fp8;
    machine.sizes["block"] = {.products = {{8, 4, 2, streams}}, .weight_grads = {{8, 4, 2, streams}}};
    const CostModel cost(model, plan, machine);
    return std::array{cost.forward_seconds(0, false), cost.backward_seconds(0), cost.weight_grad_seconds(0)};
  };
  const auto sixteen = seconds(false, true);
  EXPECT_EQ(sixteen, (std::array{128.0, 256.0, 128.0}));
  EXPECT_EQ(seconds(true, false), sixteen) << "what a block reads beside its stream stays in 16 bits";
  const double x = 32, y = 16, w = 8;
  const auto eight = seconds(true, true);
  EXPECT_NEAR(eight[0], 64 + 3 * (x + w) / 10, 1e-9);
  EXPECT_NEAR(eight[2], 64 + (5 * (x + y) + 20 * w) / 10, 1e-9) << "columns are read twice; dW is added from fp32";
  EXPECT_NEAR(eight[1] - eight[2], 64 + (3 * y + 5 * w) / 10, 1e-9);
  plan.gather_fp8 = true;
  const auto codes = seconds(true, true);
  EXPECT_NEAR(codes[0], eight[0] - 3 * w / 10, 1e-9) << "shards are quantised, which gathers take";
  EXPECT_NEAR(codes[1], eight[1] - (5 - 2) * w / 10, 1e-9) << "codes of columns are turned";
  plan.units[0].strategy = Strategy::no_shard;
  EXPECT_EQ(seconds(true, true), eight) << "what is not gathered is quantised where it is used";
  plan.gather_fp8 = false, plan.units[0].strategy = Strategy::full_shard;
  machine.sizes["block"] = {.products = {{8, 4, 2, true, true}}, .weight_grads = {{8, 4, 2, true, true}}};
  const CostModel shared(model, plan, machine);
  EXPECT_NEAR(shared.forward_seconds(0, false), 64 + 3 * w / 10, 1e-9) << "the product before it made the codes of x";
  EXPECT_NEAR(shared.weight_grad_seconds(0), 64 + (5 * y + 20 * w) / 10, 1e-9);
  // where sizes are measured, in 16 bits: this one takes three times what the rate says, and so it does at the other rate
  machine.profile.device.products["bf16"] = {
      {{8}, {4}, {2}}, {{"forward", {384}}, {"input_gradient", {384}}, {"weight_gradient", {384}}}};
  EXPECT_NEAR(seconds(true, true)[0], 3 * 64 + 3 * (x + w) / 10, 1e-9);
  machine.profile.device.products.clear();
  machine.profile.device.gemm.erase("fp8");  // a CPU
  EXPECT_NEAR(seconds(true, true)[0], 128 + 3 * (x + w) / 10, 1e-9) << "the twin multiplies in 16 bits";
}

TEST(CostModel, EachCollectiveInsideAUnitAddsTheWaitOfItsPurpose) {
  ModelSpec spec = even_model(1);
  Footprint& block = spec.units[1].cost;
  block.traffic = {{"sequence", {Axis::sp}, "all_to_all"}, {"sequence", {Axis::sp}, "all_to_all"}};
  block.backward_traffic = {{"sequence", {Axis::sp}, "all_to_all"}, {"states", {Axis::sp}, "all_gather"}};
  Machine machine = slow_machine();
  machine.profile.waits = {{"sequence", {{3}, {5}}}, {"ring", {{70}, {70}}}};
  const Plan plan = toy::plan(spec, "sp=2", 1, 1, 1);
  const CostModel cost(spec, plan, machine);
  for (const Op op : {Op::forward, Op::recompute}) {
    EXPECT_NEAR(seconds_on_link(cost, op, block.traffic), 200, 1e-9);
    EXPECT_NEAR(seconds_on_link(cost, op, block.traffic, Resource::none), 2 * 3, 1e-9);
  }
  EXPECT_NEAR(seconds_on_link(cost, Op::backward, block.backward_traffic), 200, 1e-9);
  EXPECT_NEAR(seconds_on_link(cost, Op::backward, block.backward_traffic, Resource::none), 5, 1e-9);
  machine.profile.waits["sequence"].forward.share = 0.5;  // of the instruction's seconds without waits
  const CostModel growing(spec, plan, machine);
  const double forward = seconds_on_link(cost, Op::forward, block.traffic) +
                         seconds_on_link(cost, Op::forward, block.traffic, Resource::compute);
  EXPECT_NEAR(seconds_on_link(growing, Op::forward, block.traffic, Resource::none), 2 * 3 + 0.5 * forward, 1e-9);
}

// A rank that has one processor computes nothing while its other thread copies.
TEST(CostModel, WhatIsHiddenInsideAUnitTakesComputeAsATransferOfAnotherLaneDoes) {
  ModelSpec spec = even_model(1);
  Footprint& block = spec.units[1].cost;
  block.traffic = {{"sequence", {Axis::sp}, "all_to_all"}};
  block.traffic[0].awaited.products = 1000;  // FLOPs, and so seconds, that hide the exchange
  block.backward_traffic = {{"ring", {Axis::sp}, "ring"}};
  Machine machine = slow_machine();
  machine.work["block"] = {.attention = {{"self_attn", 16}}};  // 16 s in a forward, 40 in a backward
  const Plan plan = toy::plan(spec, "sp=2", 1, 1, 1);
  machine.profile.steal = 0.25;
  const CostModel apart(spec, plan, machine);
  EXPECT_NEAR(seconds_on_link(apart, Op::forward, block.traffic), 25, 1e-9);
  EXPECT_NEAR(seconds_on_link(apart, Op::backward, block.backward_traffic), 60, 1e-9)
      << "attention hides 40 s for free";
  machine.profile.beside = 0.5;  // twice as long beside compute, and so takes twice as much of it
  const CostModel together(spec, plan, machine);
  EXPECT_NEAR(seconds_on_link(together, Op::forward, block.traffic), 50, 1e-9);
  EXPECT_NEAR(seconds_on_link(together, Op::backward, block.backward_traffic), 60 + 20, 1e-9);
}

TEST(CostModel, AGroupAcrossNodesSharesTheNicOfEachNode) {
  const ModelSpec spec = even_model(0);
  Machine machine = slow_machine();
  machine.profile.devices = 4;
  machine.profile.link = {100, 100, 0};
  machine.profile.nic = {40, 40, 0};
  const Plan across = toy::plan(spec, "dp_replicate=2,dp_shard=4", 8, 1, 1);
  const CostModel cost(spec, across, machine);
  EXPECT_NEAR(cost.collective_seconds({"dp_shard", "all_gather", 1000}, 0), 10, 1e-9);  // within the node
  // one member on each node: a quarter of the NIC; a ring's all_reduce sends 2 (n - 1) / n of the bytes
  EXPECT_NEAR(cost.collective_seconds({"dp_replicate", "all_reduce", 1000}, 0), 100, 1e-9);
  EXPECT_NEAR(cost.collective_seconds({"dp_replicate+dp_shard", "all_gather", 1000}, 0), 25, 1e-9);  // all of the NIC
}

TEST(CostModel, ExchangesAndMessagesHaveRatesOfTheirOwnWhereTheyWereMeasured) {
  const ModelSpec spec = even_model(0);
  Machine machine = slow_machine();
  machine.profile.link = {100, 50, 0};
  const Plan plan = toy::plan(spec, "sp=2", 1, 1, 1), stages = toy::plan(spec, "pp=2", 1, 1, 1);
  const auto exchanged = [&] {
    return CostModel(spec, plan, machine).collective_seconds({"sp", "all_to_all", 1000}, 0);
  };
  const auto sent = [&] { return CostModel(spec, stages, machine).message_seconds(1000, Lane::send_next, 0); };
  EXPECT_NEAR(exchanged(), 20, 1e-9) << "as a reduction";
  EXPECT_NEAR(sent(), 10, 1e-9) << "as a gather";
  machine.profile.link.exchange = 200, machine.profile.link.send = 400;
  EXPECT_NEAR(exchanged(), 5, 1e-9);
  EXPECT_NEAR(sent(), 2.5, 1e-9);
  EXPECT_NEAR(CostModel(spec, plan, machine).collective_seconds({"sp", "all_gather", 1000}, 0), 10, 1e-9);
}

TEST(CostModel, ACopyBackFromAGpuHasARateOfItsOwn) {
  const ModelSpec spec = even_model(1);
  const Plan plan = toy::plan(spec, "dp_shard=1", 1, 1, 1);
  Machine machine = slow_machine();
  machine.profile.host_link = 100;
  const auto seconds = [&](Op op, Lane lane) {
    const CostModel cost(spec, plan, machine);
    return cost.phases({.op = op, .lane = lane, .unit = 1, .bytes = 1000}, 0).at(0).seconds;
  };
  EXPECT_NEAR(seconds(Op::stash, Lane::d2h), 10, 1e-9);
  machine.profile.host_link_back = 50;
  EXPECT_NEAR(seconds(Op::stash, Lane::d2h), 20, 1e-9);
  EXPECT_NEAR(seconds(Op::fetch, Lane::h2d), 10, 1e-9);
}

// A CPU calls an operator and then computes it; a GPU computes while its host calls the next ones.
TEST(CostModel, AGpuTakesTheLongerOfItsWorkAndOfItsHostsCalls) {
  const ModelSpec spec = even_model(0);
  Machine machine = slow_machine();
  UnitWork& work = machine.work["stem"];
  work.add_product(5, true);
  work.operators = 1;
  machine.sizes["stem"] = {.products = {{1, 1, 1}}, .weight_grads = {{1, 1, 1}}};
  machine.profile.device.products["fp32"] = {{{1}, {1}, {1}},
                                             {{"forward", {5}}, {"input_gradient", {5}}, {"weight_gradient", {5}}}};
  const Plan plan = toy::plan(spec, "dp_shard=1", 1, 1, 1);
  const auto both = [&](double dispatch) {
    machine.profile.device.dispatch = dispatch;
    const CostModel cost(spec, plan, machine);
    return std::array<double, 2>{cost.forward_seconds(0, false), cost.backward_seconds(0)};
  };
  EXPECT_NEAR(both(2)[0], 5 + 2, 1e-9) << "a CPU";
  machine.profile.devices = 1;
  EXPECT_NEAR(both(2)[0], 5, 1e-9);
  EXPECT_NEAR(both(2)[1], 10, 1e-9);
  EXPECT_NEAR(both(20)[0], 2 * 20, 1e-9) << "of a product and another operator";
  EXPECT_NEAR(both(20)[1], 4 * 20, 1e-9) << "a backward calls twice as many";
}

TEST(CostModel, ADtypeWithoutRatesIsRefusedByName) {
  const ModelSpec spec = even_model(0);
  const Plan plan = toy::plan(spec, "dp_shard=1", 1, 1, 1);
  Machine machine;
  machine.dtype = "bf16";
  try {
    CostModel(spec, plan, machine);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("no rates of bf16"), std::string::npos) << error.what();
  }
}

TEST(Planner, ALayoutSetByHandIsKeptWithBothTimesSaid) {
  const ModelSpec spec = even_model(4);
  const Mesh mesh = Mesh::parse("dp_shard=2");
  PlannerInput input;
  input.global_batch = 2;
  input.budget = int64_t{1} << 40;
  input.recompute_units = 4;
  EXPECT_TRUE(set_by_hand(input));
  const Choice choice = choose(spec, mesh, input, slow_machine());
  ASSERT_TRUE(choice.fits);
  EXPECT_EQ(choice.plan.units[1].activations, Policy::recompute);
  const std::string said = slower_by_hand(spec, mesh, input, slow_machine(), choice.seconds);
  EXPECT_NE(said.find("set by hand"), std::string::npos) << said;
  input.recompute_units = 0;
  const Choice none = choose(spec, mesh, input, slow_machine());
  EXPECT_EQ(slower_by_hand(spec, mesh, input, slow_machine(), none.seconds), "");
}

TEST(Planner, TheSameRatesGiveTheSamePlan) {
  const ModelSpec spec = even_model(4);
  PlannerInput input;
  input.global_batch = 4, input.micro_batch = 2;
  const Choice a = choose(spec, Mesh::parse("dp_shard=2"), input), b = choose(spec, Mesh::parse("dp_shard=2"), input);
  EXPECT_EQ(a.plan, b.plan);
  EXPECT_EQ(a.seconds, b.seconds);
}

}  // namespace
}  // namespace tessera::plan
