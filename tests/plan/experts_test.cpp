#include <gtest/gtest.h>

#include "plan/planner_toy.h"
#include "tessera/base/check.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/plan_file.h"
#include "tessera/plan/simulate/predict.h"

namespace tessera::plan {
namespace {

struct Curves {
  MemoryCurve one, two;
};

/// Of a single denoiser and of two, on rank 1 of 2.
Curves curves(Tier idle, Tier parameters = Tier::device) {
  const ModelSpec spec = toy::model(3);
  Plan plan = toy::plan(spec, "dp_shard=2", 4, 2, 1);
  for (UnitPlan& unit : plan.units) unit.parameters = parameters;
  Curves c;
  c.one = memory_curve(spec, plan, compile_train(spec, plan, 1), 1);
  plan.experts = 2, plan.idle = idle;
  c.two = memory_curve(spec, plan, compile_train(spec, plan, 1), 1);
  return c;
}

TEST(IdleExperts, CostTheirShardsAndStatesWhereTheyRest) {
  const Curves device = curves(Tier::device), host = curves(Tier::host), nvme = curves(Tier::nvme);
  const int64_t shards = device.one.by_part.parameters, states = device.one.by_part.states;
  ASSERT_GT(shards, 0);
  EXPECT_EQ(device.two.peak - device.one.peak, shards + states) << "gradients and slots are shared";
  EXPECT_EQ(host.two.peak, host.one.peak);
  EXPECT_EQ(host.two.host.total() - host.one.host.total(), shards + states);
  EXPECT_EQ(nvme.two.peak, nvme.one.peak);
  EXPECT_EQ(nvme.two.nvme.total(), shards + states);
}

TEST(IdleExperts, StayWhereTheActiveOneRestsOffTheDevice) {
  const Curves c = curves(Tier::nvme, Tier::host);
  EXPECT_EQ(c.two.host.parameters, 2 * c.one.host.parameters);
  EXPECT_EQ(c.two.nvme.parameters, 0);
  EXPECT_EQ(c.two.nvme.states, c.one.by_part.states);
}

/// With one trained parameter in each unit, as adapters are.
TEST(IdleExperts, OfOneBaseCostWhatIsTrainedOfThem) {
  ModelSpec spec = toy::model(3);
  for (UnitSpec& unit : spec.units)
    for (size_t p = 1; p < unit.params.size(); ++p) unit.params[p].trainable = false;
  for (const Tier parameters : {Tier::device, Tier::host}) {
    Plan plan = toy::plan(spec, "dp_shard=2", 4, 2, 1);
    for (UnitPlan& unit : plan.units) unit.parameters = parameters;
    const auto curve = [&] { return memory_curve(spec, plan, compile_train(spec, plan, 1), 1); };
    const MemoryCurve one = curve();
    plan.experts = 2;
    const MemoryCurve apart = curve();
    plan.shared_base = true;
    const MemoryCurve shared = curve();
    int64_t trained = 0, all = 0;
    for (size_t u = 0; u < spec.units.size(); ++u) {
      const UnitLayout layout = plan.layout(spec.units[u], static_cast<int>(u));
      trained += trained_shard_bytes(layout, plan.states.masters), all += shard_bytes(layout, plan.states.masters);
    }
    const auto parameters_of = [&](const MemoryCurve& c) {
      return parameters == Tier::device ? c.by_part.parameters : c.host.parameters;
    };
    ASSERT_LT(trained, all);
    EXPECT_EQ(parameters_of(apart), 2 * all);
    EXPECT_EQ(parameters_of(shared), all + trained);
    EXPECT_EQ(shared.by_part.states, 2 * one.by_part.states);
    EXPECT_EQ(plan_of_toml(to_toml(plan, toy::names(spec)), "plan.toml", toy::names(spec)), plan);
    EXPECT_NE(plan.summary().find("2 networks of one base"), std::string::npos) << plan.summary();
  }
}

TEST(IdleExperts, ThePlanInTheFileIsThePlan) {
  const ModelSpec spec = toy::model(2);
  Plan plan = toy::plan(spec, "dp_shard=2", 4, 2, 1);
  plan.experts = 2, plan.idle = Tier::host;
  EXPECT_EQ(plan_of_toml(to_toml(plan, toy::names(spec)), "plan.toml", toy::names(spec)), plan);
  EXPECT_NE(plan.summary().find("2 experts, idle on host"), std::string::npos) << plan.summary();
  EXPECT_THROW(plan_of_toml("idle = \"attic\"", "plan.toml", toy::names(spec)), UserError);
}

TEST(IdleExperts, AStepIsThatOfOneOfThem) {
  const ModelSpec spec = toy::model(2);
  Plan plan = toy::plan(spec, "dp_shard=2", 4, 2, 1);
  const uint64_t one = schedule_hash(compile_train(spec, plan, 0));
  plan.experts = 2, plan.idle = Tier::host;
  EXPECT_EQ(schedule_hash(compile_train(spec, plan, 0)), one);
}

/// Bytes that the collectives of a schedule send.
int64_t sent(const Schedule& schedule) {
  int64_t bytes = 0;
  for (const Instruction& in : schedule.list)
    if (in.op == Op::gather || in.op == Op::reduce)
      for (const Comm& comm : in.comm) bytes += comm.bytes;
  return bytes;
}

TEST(IdleExperts, SendHalfOfWhatADenseModelOfBothWouldByTheFormulaOfTheDocs) {
  const ModelSpec expert = toy::model(4);
  ModelSpec dense = expert;
  for (UnitSpec& unit : dense.units)  // every parameter twice
    for (size_t p = 0, count = unit.params.size(); p < count; ++p) {
      ParamSpec twin = unit.params[p];
      twin.name += ".twin";
      unit.params.push_back(twin);
    }
  constexpr int kRanks = 2;
  const auto step = [](const ModelSpec& spec, int experts) {
    Plan plan = toy::plan(spec, "dp_shard=2", 2, 1, 1);
    plan.experts = experts;
    return sent(compile_train(spec, plan, 0));
  };
  int64_t elements = 0;  // with the padding of the flat buffers
  int gathers = 0;
  const Plan plan = toy::plan(expert, "dp_shard=2", 2, 1, 1);
  const Schedule schedule = compile_train(expert, plan, 0);
  for (const Instruction& in : schedule.list) {
    if (in.op == Op::reduce) elements += plan.layout(expert.units[in.unit], in.unit).total;
    gathers += in.op == Op::gather;
  }
  int64_t gathered = 0;
  for (const Instruction& in : schedule.list)
    if (in.op == Op::gather) gathered += plan.layout(expert.units[in.unit], in.unit).total;
  ASSERT_GT(gathers, static_cast<int>(expert.units.size())) << "forward and backward";
  EXPECT_EQ(step(expert, 2), (4 * gathered + 4 * elements) * (kRanks - 1) / kRanks);
  EXPECT_NEAR(static_cast<double>(step(expert, 2)) / static_cast<double>(step(dense, 1)), 0.5, 0.05);
}

Machine gpus(double host_link) {
  Machine machine{.profile = find_profile("h200"), .work = {}, .dtype = "bf16"};
  machine.profile.host_link = host_link, machine.profile.host_bandwidth = 0;
  return machine;
}

ExpertSwap change_of_turns(Tier idle, double host_link) {
  const ModelSpec spec = toy::model(3);
  Plan plan = toy::plan(spec, "dp_shard=2", 4, 2, 1);
  plan.experts = 2, plan.idle = idle;
  const Machine machine = gpus(host_link);
  return expert_swap(spec, plan, machine, predict(spec, plan, machine));
}

TEST(AChangeOfTurns, MovesBothExpertsSharesAndIsWaitedForWhereTheStepIsAhead) {
  EXPECT_EQ(change_of_turns(Tier::device, 1e9).bytes, 0) << "they rest where they are used";
  const ModelSpec spec = toy::model(3);
  const Plan plan = toy::plan(spec, "dp_shard=2", 4, 2, 1);
  const MemoryParts held = memory_curve(spec, plan, compile_train(spec, plan, 0), 0).by_part;  // the fuller rank
  const ExpertSwap slow = change_of_turns(Tier::host, 1e6), fast = change_of_turns(Tier::host, 1e9);
  EXPECT_EQ(slow.bytes, 2 * (held.parameters + held.states));
  EXPECT_EQ(fast.bytes, slow.bytes);
  EXPECT_NEAR(slow.seconds, static_cast<double>(slow.bytes) / 1e6, 1e-9 * slow.seconds);
  EXPECT_LT(fast.waited, slow.waited);
  // Nothing can be updated before the last states have come, and by then most of a step is done.
  EXPECT_GT(slow.waited, 0.9 * slow.seconds) << "a step of microseconds hides nothing of it";
  EXPECT_LT(slow.waited, slow.seconds);
}

TEST(AGate, TakesAsManyStepsAsItsSamplesChooseExperts) {
  const ModelSpec spec = toy::model(3);
  const Machine machine = gpus(1e9);
  Plan plan = toy::plan(spec, "dp_shard=2", 8, 1, 1);
  plan.experts = 5;
  const GateSeconds hard = gate_seconds(spec, plan, machine, false);
  EXPECT_DOUBLE_EQ(hard.alike, predict(spec, plan, machine).step.total);
  Plan part = plan;
  part.global_batch = 2;  // of four samples a rank one for each of five experts, where there are any
  EXPECT_EQ(hard.experts, 5);
  EXPECT_DOUBLE_EQ(hard.different, 5 * predict(spec, part, machine).step.total);
  // The worst that choices can do: both ranks' four samples agree with each other and with no other rank's.
  EXPECT_EQ(hard.disagreeing_experts, 2);
  EXPECT_DOUBLE_EQ(hard.disagreeing, std::max(hard.different, 2 * hard.alike));
  const GateSeconds soft = gate_seconds(spec, plan, machine, true);
  EXPECT_EQ(soft.alike, soft.different);
  EXPECT_GT(soft.alike, 5 * hard.alike) << "each predicts once more than it learns";
  plan.mesh = Mesh::parse("dp_shard=1"), plan.global_batch = 1;
  const GateSeconds one = gate_seconds(spec, plan, machine, false);
  EXPECT_EQ(one.experts, 1);
  EXPECT_DOUBLE_EQ(one.alike, one.different) << "one sample chooses one";
  EXPECT_DOUBLE_EQ(one.alike, one.disagreeing);
}

/// Samples travel in host memory: where ranks that share them are on several nodes, over the network of the hosts, whatever
/// cards the devices have.
TEST(AGate, DealsBetweenNodesOverTheNetworkOfTheHosts) {
  const ModelSpec spec = toy::model(3);
  Machine machine = gpus(1e9);
  machine.profile.host_bandwidth = 100e9;
  const auto deal = [&](const char* mesh, int ranks) {
    Plan plan = toy::plan(spec, mesh, 2 * ranks, 1, 1);
    plan.experts = 3;
    return gate_mean(spec, plan, machine, {1, 1, 1}, std::vector<int64_t>(static_cast<size_t>(ranks), 2), 1 << 20);
  };
  const GateMean node = deal("dp_shard=8", 8), stages = deal("pp=2,dp_shard=8", 8), nodes = deal("dp_shard=16", 16);
  ASSERT_GT(node.mean_bytes, 0);
  EXPECT_NEAR(node.mean_seconds, node.mean_bytes / (100e9 / 16), 1e-9 * node.mean_seconds);
  EXPECT_DOUBLE_EQ(stages.mean_seconds, node.mean_seconds) << "ranks that share samples are on one node";
  const double hosts = 25e9 / 8 / 8, beyond = 8.0 / 15;  // bytes/s of a rank; ranks on the other node
  EXPECT_NEAR(nodes.mean_seconds, nodes.mean_bytes * (beyond / hosts + (1 - beyond) / (100e9 / 16)),
              1e-9 * nodes.mean_seconds);
  EXPECT_NEAR(nodes.worst_seconds, static_cast<double>(nodes.worst_bytes) / hosts, 1e-9 * nodes.worst_seconds);
  EXPECT_GT(nodes.dealt - nodes.mean_seconds, 0);
  machine.profile.nic.exchange = 10 * machine.profile.nic.reduce;
  EXPECT_DOUBLE_EQ(deal("dp_shard=16", 16).mean_seconds, nodes.mean_seconds);
  machine.profile.nic.exchange = 1e9;  // a slower network than the one that is assumed
  EXPECT_NEAR(deal("dp_shard=16", 16).worst_seconds, 8 * static_cast<double>(nodes.worst_bytes) / 1e9,
              1e-9 * nodes.worst_seconds);
}

/// A step of a gate runs, for each expert, as many micro-batches as the rank that chose it most has samples for. The
/// bounds hold for whatever ranks choose, and are reached.
TEST(AGate, NoChoiceOfRanksTakesLongerThanTheBound) {
  const ModelSpec spec = toy::dear_model();
  const Machine machine = toy::machine();
  Plan plan = toy::plan(spec, "dp_shard=4", 16, 1, 1);
  plan.experts = 3;
  const GateSeconds bound = gate_seconds(spec, plan, machine, false);
  EXPECT_EQ(bound.disagreeing_experts, 3);
  EXPECT_GT(bound.disagreeing, 2 * bound.alike);
  const auto step = [&](const std::vector<std::vector<int64_t>>& chosen) {  // [expert][rank]
    double seconds = 0;
    for (const std::vector<int64_t>& samples : chosen) {
      Plan part = plan;
      part.shares = samples;
      if (std::ranges::max(samples) > 0) seconds += predict(spec, part, machine).step.total;
    }
    return seconds;
  };
  std::mt19937_64 random(7);
  for (int drawn = 0; drawn < 20; ++drawn) {
    std::vector<std::vector<int64_t>> chosen(3, std::vector<int64_t>(4, 0));
    for (size_t rank = 0; rank < 4; ++rank)
      for (int sample = 0; sample < 4; ++sample) ++chosen[random() % 3][rank];
    EXPECT_LE(step(chosen), bound.disagreeing * (1 + 1e-9));
    EXPECT_GE(step(chosen), bound.alike * (1 - 1e-9));
  }
  EXPECT_NEAR(step({{4, 0, 0, 4}, {0, 4, 0, 0}, {0, 0, 4, 0}}), bound.disagreeing, 0.01 * bound.disagreeing)
      << "ranks that always disagree";
}

}  // namespace
}  // namespace tessera::plan
