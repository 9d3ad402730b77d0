#include "tessera/plan/optimizers.h"
#include "tessera/plan/plan_file.h"

#include <gtest/gtest.h>

#include "plan/edit.h"
#include "plan/toy.h"
#include "tessera/base/check.h"
#include "tessera/plan/compile/rules.h"

namespace tessera::plan {
namespace {

TEST(Optimizers, ARowForEachInTheOrderOfTheirNames) {
  for (const OptimizerRow& row : optimizers()) {
    EXPECT_EQ(&tessera::plan::row(row.optimizer), &row);
    EXPECT_EQ(optimizer_of(name(row.optimizer), "test"), row.optimizer);
  }
  EXPECT_THROW(optimizer_of("adamv", "test"), UserError);
}

TEST(Optimizers, BytesOfAParameterWithItsMasters) {
  const auto bytes = [](Optimizer optimizer, Moments moments = Moments::fp32, bool ema = false) {
    return bytes_per_parameter({Masters::fp32, moments, optimizer, ema});
  };
  EXPECT_DOUBLE_EQ(bytes(Optimizer::lion), 8);
  EXPECT_NEAR(bytes(Optimizer::lion, Moments::int8), 5.016, 0.001);
  EXPECT_NEAR(bytes(Optimizer::adafactor), 4, 0.003);
  StateFormat first{.optimizer = Optimizer::adafactor, .first_moment = true};
  EXPECT_NEAR(bytes_per_parameter(first), 8, 0.003);
  first.moments = Moments::int8;
  EXPECT_NEAR(bytes_per_parameter(first), 5.02, 0.005);
  EXPECT_TRUE(has_first_moment(first));
  EXPECT_FALSE(has_first_moment({.optimizer = Optimizer::adafactor}));
  EXPECT_DOUBLE_EQ(bytes_per_parameter({.optimizer = Optimizer::adamw, .first_moment = true}), 12)
      << "it has one anyway";
  EXPECT_NEAR(bytes(Optimizer::came), 8, 0.005);
  EXPECT_NEAR(bytes(Optimizer::came, Moments::int8), 5.02, 0.005);
  EXPECT_DOUBLE_EQ(bytes(Optimizer::prodigy), 20);
  EXPECT_DOUBLE_EQ(bytes(Optimizer::adamw, Moments::fp32, true), 16);
}

/// What each reads and writes, by hand: sums over rows, over columns, of the divided gradient and of the residual read again.
TEST(Optimizers, AnUpdateMovesWhatItsPassesReadAndWrite) {
  const auto bytes = [](StateFormat format, DType grad = DType::f32) { return update_bytes(format, grad); };
  EXPECT_DOUBLE_EQ(bytes({}), 28);
  EXPECT_DOUBLE_EQ(bytes({}, DType::bf16), 26);
  EXPECT_DOUBLE_EQ(bytes({.optimizer = Optimizer::lion}), 20);
  EXPECT_DOUBLE_EQ(bytes({.optimizer = Optimizer::prodigy}), 44);
  constexpr double kFactors = 0.01;  // of a large matrix
  EXPECT_NEAR(bytes({.optimizer = Optimizer::adafactor}), 12 + 8 + 4 + 4, kFactors);
  EXPECT_NEAR(bytes({.masters = Masters::bf16, .optimizer = Optimizer::adafactor}), 8 + 8 + 2 + 4, kFactors);
  EXPECT_NEAR(bytes({.optimizer = Optimizer::adafactor, .first_moment = true}), 20 + 8 + 4 + 4, kFactors);
  EXPECT_NEAR(bytes({.optimizer = Optimizer::came}), 20 + 8 + 4 + 2 * (4 + 4), kFactors);
  EXPECT_NEAR(bytes({.moments = Moments::bf16, .optimizer = Optimizer::came}, DType::bf16), 14 + 4 + 2 + 2 * (2 + 2),
              kFactors);
  EXPECT_NEAR(bytes({.moments = Moments::int8, .optimizer = Optimizer::came}), 14 + 8 + 4 + 2 * (4 + 1), 0.05);
  EXPECT_DOUBLE_EQ(bytes({.optimizer = Optimizer::muon}), 20 + 2 * 2) << "a direction in bf16";
  EXPECT_DOUBLE_EQ(bytes({.optimizer = Optimizer::muon, .matrices = DType::f32}), 20 + 2 * 4);
}

TEST(Optimizers, FactorsOfATensor) {
  const auto text = [](Factoring factoring, std::vector<int64_t> shape) {
    const Factors f = factors_of(factoring, {"w", std::move(shape)});
    return std::to_string(f.matrices) + "x" + std::to_string(f.rows) + "x" + std::to_string(f.columns);
  };
  EXPECT_EQ(text(Factoring::last_two, {4, 3, 5, 7}), "12x5x7");
  EXPECT_EQ(text(Factoring::last_two, {6, 10}), "1x6x10");
  EXPECT_EQ(text(Factoring::matrices, {6, 10}), "1x6x10");
  EXPECT_EQ(text(Factoring::matrices, {5, 4, 1, 1}), "1x5x4");
  EXPECT_EQ(text(Factoring::matrices, {5, 4, 3, 3}), "0x0x0");
  EXPECT_EQ(text(Factoring::last_two, {10}), "0x0x0");
  EXPECT_EQ(text(Factoring::none, {6, 10}), "0x0x0");
}

TEST(Optimizers, StatesOfTheWholeTensorAreHeldByEveryRankThatUpdatesAPartOfIt) {
  UnitSpec unit;
  unit.params = {{"w", {40, 60}}};
  const UnitLayout layout = unit_layout(unit, 3);
  for (int rank = 0; rank < 3; ++rank) {
    const StateLayout mine = state_layout(unit, layout, {Held{rank}}, states_of({.optimizer = Optimizer::adafactor}));
    ASSERT_EQ(mine.ranges.size(), 1u);
    EXPECT_EQ(mine.bytes, round_up(40 * 4, kStateAlign) + round_up(60 * 4, kStateAlign));
  }
}

TEST(Optimizers, AnUpdateDeclaresTheSumsOverItsTensors) {
  const ModelSpec spec = toy::model(2);
  for (const Optimizer optimizer : {Optimizer::lion, Optimizer::adafactor, Optimizer::came}) {
    Plan plan = toy::plan(spec, "dp_shard=2", 2, 1, 1);
    plan.states.optimizer = optimizer;
    const std::vector<Line> lines = toy::run(spec, plan, 2, 0);
    EXPECT_EQ(toy::text(check(lines)), "") << name(optimizer);
    int updates = 0;
    for (const Line& line : lines) {
      if (line.in.op != Op::update || line.in.name != "stem") continue;
      ++updates;
      ASSERT_EQ(static_cast<int>(line.in.comm.size()), row(optimizer).rounds);
      if (line.in.comm.empty()) continue;
      // weight [12, 40], bias [12], scale [3]; Adafactor sums the squares of each parameter too
      EXPECT_EQ(line.in.comm[0].bytes, 4 * (12 + 40 + (optimizer == Optimizer::adafactor ? 3 : 0)));
      EXPECT_EQ(line.in.comm[1].bytes, 4 * 3);
      EXPECT_EQ(line.in.comm[0].group, "sums:dp_shard[0,1]");
    }
    EXPECT_EQ(updates, 4) << "two ranks, two steps";
  }
}

TEST(Optimizers, APlanKeepsItsOptimizerAsAFile) {
  Plan plan;
  plan.units.resize(1);
  plan.states = {Masters::fp32, Moments::fp32, Optimizer::came, true};
  EXPECT_EQ(plan_of_toml(to_toml(plan, {"stem"}), "plan.toml", {"stem"}).states, plan.states);
}

}  // namespace
}  // namespace tessera::plan
