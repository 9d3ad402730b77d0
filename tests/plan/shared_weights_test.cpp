// Which ranks share frozen weights on the host, and what each of them counts and moves.
#include "tessera/plan/shared_weights.h"
#include "tessera/plan/plan_file.h"

#include <gtest/gtest.h>

#include "plan/planner_toy.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/compile/races.h"
#include "tessera/plan/compile/rules.h"

namespace tessera::plan {
namespace {

/// Blocks have a frozen weight, in parts that tensor parallelism cuts, beside trained ones.
ModelSpec adapted(DType stored = DType::f32) {
  ModelSpec spec = toy::model(3, 64);
  for (UnitSpec& unit : spec.units)
    if (unit.kind == "block") {
      unit.params[0].trainable = false, unit.params[0].stored = stored;
      unit.params[0].split = Split::column_parallel;
    }
  return spec;
}

/// All units alike, on machines of `local_world` ranks.
Plan on(const ModelSpec& spec, const char* mesh, int local_world, const UnitPlan& each) {
  Plan plan = toy::plan(spec, mesh, 8, 1, 1);
  plan.local_world = local_world;
  for (UnitPlan& unit : plan.units) unit = each;
  return plan;
}

constexpr int kBlock = 1;
const UnitPlan kHost = {.parameters = Tier::host}, kWhole = {.strategy = Strategy::no_shard, .parameters = Tier::host};

std::vector<int> sharers(const char* mesh, int local_world, const UnitPlan& each, int rank, int unit = kBlock) {
  const ModelSpec spec = adapted();
  const Plan plan = on(spec, mesh, local_world, each);
  return weight_sharers(plan, plan.layout(spec.units[static_cast<size_t>(unit)], unit), unit, rank);
}

TEST(SharedWeights, RanksOfAMachineWithTheSameShardsShareThem) {
  using Ranks = std::vector<int>;
  EXPECT_EQ(sharers("dp_replicate=4", 4, kHost, 2), (Ranks{0, 1, 2, 3}));
  EXPECT_EQ(sharers("dp_shard=4", 4, kWhole, 1), (Ranks{0, 1, 2, 3})) << "every rank has all of it";
  EXPECT_EQ(sharers("dp_shard=4", 4, kHost, 1), Ranks{}) << "each has a shard of its own";
  EXPECT_EQ(sharers("dp_replicate=2,dp_shard=2", 4, kHost, 3), (Ranks{1, 3})) << "replicas of a shard";
  EXPECT_EQ(sharers("dp_replicate=4", 2, kHost, 2), (Ranks{2, 3})) << "others are on another machine";
  EXPECT_EQ(sharers("dp_replicate=4", 1, kHost, 2), Ranks{});
  EXPECT_EQ(sharers("dp_replicate=4", 3, kHost, 3), Ranks{}) << "alone on its machine";
  EXPECT_EQ(sharers("dp_replicate=2,tp=2", 4, kHost, 3), (Ranks{1, 3})) << "other features belong to other ranks of tp";
  EXPECT_EQ(sharers("pp=2,dp_replicate=2", 4, kHost, 0), (Ranks{0, 1})) << "the other stage has no such unit";
  EXPECT_EQ(sharers("pp=2,dp_replicate=2", 4, kHost, 2), Ranks{});
  EXPECT_EQ(sharers("dp_replicate=4", 4, {}, 2), Ranks{}) << "on the device";
  EXPECT_EQ(sharers("dp_replicate=4", 4, {.parameters = Tier::nvme}, 2), Ranks{});
  EXPECT_EQ(sharers("dp_replicate=4", 4, kHost, 2, /*unit=*/0), Ranks{}) << "nothing is frozen";
}

TEST(SharedWeights, UnitsAreFilledByTheSharersInTurn) {
  const std::vector<int> four = {4, 5, 6, 7};
  for (int unit = 0; unit < 9; ++unit) EXPECT_EQ(weight_filler(four, unit), 4 + unit % 4);
}

MemoryCurve memory(const ModelSpec& spec, const Plan& plan, int rank) {
  return memory_curve(spec, plan, compile_train(spec, plan, rank), rank);
}

/// Host bytes of all ranks.
int64_t host_of_all(const ModelSpec& spec, const Plan& plan) {
  int64_t bytes = 0;
  for (int rank = 0; rank < plan.mesh.world(); ++rank) bytes += memory(spec, plan, rank).host.total();
  return bytes;
}

TEST(SharedWeights, AMachineCountsThemOnce) {
  for (const DType stored : {DType::f32, DType::bf16, DType::i8})
    for (const auto& [mesh, each, copies] : {std::tuple("dp_replicate=3", kHost, 3),
                                             {"dp_shard=3", kWhole, 3},
                                             {"dp_replicate=2,dp_shard=2", kHost, 2},
                                             {"dp_replicate=2,tp=2", kWhole, 2}}) {
      const ModelSpec spec = adapted(stored);
      Plan plan = on(spec, mesh, 1, each);
      int64_t frozen = 0;  // of all ranks, each with its own
      for (int rank = 0; rank < plan.mesh.world(); ++rank)
        for (size_t u = 0; u < spec.units.size(); ++u)
          frozen += frozen_bytes(plan.layout(spec.units[u], static_cast<int>(u)));
      const int64_t own = host_of_all(spec, plan);
      plan.local_world = plan.mesh.world();
      EXPECT_EQ(host_of_all(spec, plan), own - frozen + frozen / copies) << mesh << " " << name(stored);
      const int64_t whole = own / plan.mesh.world();
      const MemoryCurve one = memory(spec, plan, 0);
      EXPECT_EQ(one.host.total() + one.spared, whole) << "a rank says what it spares";
    }
}

/// Both experts rest on the host, whichever is active. One that only waits there for its turn is written by the swap.
TEST(SharedWeights, ExpertsThatSwapWithTheDeviceAreNotShared) {
  const ModelSpec spec = adapted();
  Plan plan = on(spec, "dp_replicate=2", 2, kHost);
  plan.experts = 2, plan.idle = Tier::host;
  int64_t frozen = 0;
  for (size_t u = 0; u < spec.units.size(); ++u)
    frozen += frozen_bytes(plan.layout(spec.units[u], static_cast<int>(u)));
  EXPECT_EQ(memory(spec, plan, 0).spared + memory(spec, plan, 1).spared, 2 * frozen);
  for (UnitPlan& unit : plan.units) unit.parameters = Tier::device;
  EXPECT_GE(memory(spec, plan, 0).host.parameters, frozen);
  EXPECT_EQ(memory(spec, plan, 0).spared, 0);
}

/// An update fetches and stashes what it changes: frozen weights on the host are never written.
TEST(SharedWeights, AnUpdateMovesTrainedParametersAlone) {
  const ModelSpec spec = adapted();
  for (const Tier tier : {Tier::host, Tier::nvme})
    for (const Update update : {Update::end, Update::just_in_time, Update::in_backward}) {
      Plan plan = on(spec, "dp_replicate=2", 2, {.parameters = tier});
      plan.update = update;
      int updates = 0;
      for (const bool alone : {false, true}) {
        const Schedule schedule = alone ? compile_updates(spec, plan, 0) : compile_train(spec, plan, 0);
        for (const Instruction& in : schedule.list) {
          if (in.part != Part::parameters || (in.op != Op::fetch && in.op != Op::stash)) continue;
          const UnitLayout layout = plan.layout(spec.units[static_cast<size_t>(in.unit)], in.unit);
          const int64_t whole = shard_bytes(layout, plan.states.masters), trained = layout.grad_shard * 4;
          const bool of_update = in.micro < 0;
          EXPECT_EQ(in.bytes, of_update && tier == Tier::host ? trained : whole) << in.name;
          updates += of_update;
        }
        EXPECT_TRUE(find_races(spec, plan, schedule, 0).empty());
      }
      EXPECT_GT(updates, 0);
      for (const Violation& violation : check(toy::run(spec, plan, 3))) ADD_FAILURE() << violation.text;
    }
}

/// Whole on the host they take no more of the machine than in shards, and no gather.
TEST(SharedWeights, ThePlannerKeepsThemWholeOnTheHostWhereGathersAreSlow) {
  ModelSpec spec = toy::dear_model();
  int64_t frozen = 0;
  for (UnitSpec& unit : spec.units)
    if (unit.kind == "block") unit.params[0].trainable = false, frozen += 4 * unit.params[0].numel();
  Machine machine = toy::machine();
  machine.profile.devices = 2, machine.profile.link.gather = 1e6;
  PlannerInput input = toy::input(0, /*host=*/2 * frozen);
  input.local_world = 2;
  input.budget = choose(spec, toy::kTwo, input, machine).memory.peak - frozen / 2;
  const auto whole_on_host = [](const Plan& plan) {
    return std::ranges::count_if(plan.units, [](const UnitPlan& unit) {
      return unit.strategy == Strategy::no_shard && unit.parameters == Tier::host;
    });
  };
  const Choice together = choose(spec, toy::kTwo, input, machine);
  ASSERT_TRUE(together.fits) << together.advice;
  EXPECT_GT(whole_on_host(together.plan), 0) << together.plan.summary();
  EXPECT_GT(together.memory.spared, 0);
  input.local_world = 1;
  const Choice apart = choose(spec, toy::kTwo, input, machine);
  EXPECT_EQ(whole_on_host(apart.plan), 0) << apart.plan.summary();
  EXPECT_LT(together.seconds, apart.seconds);
}

TEST(SharedWeights, APlanFileSaysHowManyRanksAMachineHas) {
  const ModelSpec spec = adapted();
  const Plan plan = on(spec, "dp_replicate=4", 2, kHost);
  const std::string text = to_toml(plan, toy::names(spec));
  EXPECT_NE(text.find("local_world = 2"), text.npos) << text;
  EXPECT_EQ(plan_of_toml(text, "plan.toml", toy::names(spec)), plan);
  const std::string none = to_toml(on(spec, "dp_replicate=4", 2, {}), toy::names(spec));
  EXPECT_EQ(none.find("local_world"), none.npos) << "nothing rests on the host";
}

}  // namespace
}  // namespace tessera::plan
