// Where a schedule gives up the device memory of what it has copied to the host.
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/toy.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/simulate/predict.h"

namespace tessera::plan {
namespace {

constexpr int kBlocks = 10;

Plan offloading(const ModelSpec& spec, const std::vector<int>& blocks, int prefetch) {
  Plan plan = toy::plan(spec, "dp_shard=1", 1, 1, prefetch);
  for (int block : blocks) plan.units[static_cast<size_t>(block) + 1].activations = Policy::offload;
  return plan;
}

bool drops(const Instruction& in) { return in.op == Op::drop && in.part == Part::activations; }

/// By block: how many forwards stand between its own and its drop.
std::map<int, int> forwards_before_drops(const Schedule& schedule) {
  std::map<int, int> result, begun;
  int forwards = 0;
  for (const Instruction& in : schedule.list) {
    if (in.op == Op::forward) begun[in.unit] = ++forwards;
    if (drops(in)) result[in.unit - 1] = forwards - begun.at(in.unit);
  }
  return result;
}

/// The same instructions, each drop directly behind its stash: the least memory that there could be.
Schedule dropped_at_once(Schedule schedule) {
  for (size_t i = 0; i < schedule.list.size(); ++i) {
    if (!drops(schedule.list[i])) continue;
    const Instruction drop = schedule.list[i];
    const auto stash = std::find_if(schedule.list.begin(), schedule.list.end(), [&](const Instruction& in) {
      return in.op == Op::stash && in.lane == Lane::d2h && in.unit == drop.unit && in.micro == drop.micro;
    });
    schedule.list.erase(schedule.list.begin() + static_cast<std::ptrdiff_t>(i));
    schedule.list.insert(stash + 1, drop);
  }
  return schedule;
}

TEST(LateDrops, WhereMemoryStillGrowsACopyHasThreeMoreVisits) {
  const ModelSpec spec = toy::model(kBlocks);
  for (int prefetch : {0, 1, 2}) {
    const Plan plan = offloading(spec, {0, 2, 4}, prefetch);
    const Schedule schedule = compile_train(spec, plan, 0);
    const int visits = 3 + std::min(prefetch, 1);  // with prefetch a copy has one anyway
    EXPECT_EQ(forwards_before_drops(schedule), (std::map<int, int>{{0, visits}, {2, visits}, {4, visits}}));
    EXPECT_EQ(memory_curve(spec, plan, schedule, 0).peak, memory_curve(spec, plan, dropped_at_once(schedule), 0).peak);
  }
}

TEST(LateDrops, WhereEachForwardNeedsTheMemoryOfTheOneBeforeNothingIsLate) {
  const ModelSpec spec = toy::model(kBlocks);
  std::vector<int> all;
  for (int block = 0; block < kBlocks; ++block) all.push_back(block);
  for (int prefetch : {0, 1}) {
    const Plan plan = offloading(spec, all, prefetch);
    const Schedule schedule = compile_train(spec, plan, 0);
    const std::map<int, int> waited = forwards_before_drops(schedule);
    for (int block = 0; block + 3 < kBlocks; ++block) EXPECT_EQ(waited.at(block), prefetch) << block;
  }
}

TEST(LateDrops, ACopyOfTwoForwardsIsHiddenWhereEveryOtherUnitSends) {
  const ModelSpec spec = [] {
    ModelSpec made = toy::model(kBlocks);
    for (UnitSpec& unit : made.units) unit.cost.forward_flops = 1000, unit.cost.backward_flops = 3000;
    return made;
  }();
  Machine machine;
  machine.profile = {};
  machine.profile.device.gemm = {{"fp32", {1, 0}}};
  machine.profile.device.bandwidth = machine.profile.device.stream = {1e18, 0};
  const Plan plan = offloading(spec, {0, 2, 4}, 2);
  machine.profile.host_link = static_cast<double>(offloaded_bytes(spec, plan, 1)) / 1900;  // 1.9 forwards
  EXPECT_NEAR(predict(spec, plan, machine).step.exposed_copy, 0, 1e-6);
}

}  // namespace
}  // namespace tessera::plan
